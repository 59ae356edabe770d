# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Forwarding and iptables: what is changed is only what differs."""

import pytest

from ci.concourse.worker import container_network


class Site:
    """A machine that forwards nothing. It notes each command, and sysctl works."""

    def __init__(self, folder):
        self.drop_in, self.live = folder / "90-gpu-ci-worker.conf", folder / "ip_forward"
        self.live.write_text("0\n")
        self.ran, self.missing, self.asked = [], False, []
        self.machine = container_network.Machine(self.drop_in, self.live, self.install, self.run)

    def install(self, *names):
        self.asked.append(names)
        return self.missing

    def run(self, argv, **_):
        self.ran.append(argv)
        self.live.write_text("1\n")

    def ensure(self):
        return container_network.ensure(self.machine)

    def remove(self):
        return container_network.remove(self.machine)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_forwarding_is_on_now_and_after_a_reboot(site):
    assert site.ensure()
    assert site.drop_in.read_text().endswith("\nnet.ipv4.ip_forward = 1\n")
    assert site.ran == [["/usr/sbin/sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]]
    assert not site.ensure()
    assert len(site.ran) == 1
    site.live.write_text("0\n")
    assert site.ensure()
    assert len(site.ran) == 2


def test_a_machine_that_forwards_already_is_only_written_down(site):
    site.live.write_text("1\n")
    assert site.ensure()
    assert site.drop_in.exists()
    assert site.ran == []


def test_the_tools_for_rules_are_installed(site):
    site.ensure()
    site.missing = True
    assert site.ensure()
    assert site.asked == [("iptables", "nftables")] * 2


def test_removal_leaves_what_others_may_rest_on_until_the_next_boot(site):
    site.ensure()
    assert site.remove()
    assert not site.drop_in.exists()
    assert site.live.read_text() == "1\n"
    assert len(site.ran) == 1
    assert not site.remove()
