# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Forwarding and iptables: what is changed is only what differs."""

import pytest

from ci.concourse.worker import container_network
from machine import packages, process


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that forwards nothing; what is run on it is noted, and sysctl works."""
    drop_in, live, ran = tmp_path / "90-gpu-ci-worker.conf", tmp_path / "ip_forward", []
    live.write_text("0\n")

    def run(argv, **_):
        ran.append(argv)
        live.write_text("1\n")

    monkeypatch.setattr(container_network, "_DROP_IN", drop_in)
    monkeypatch.setattr(container_network, "_LIVE", live)
    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(packages, "ensure_installed", lambda *names: False)
    return drop_in, live, ran


def test_forwarding_is_on_now_and_after_a_reboot(machine):
    drop_in, live, ran = machine
    assert container_network.ensure()
    assert drop_in.read_text().endswith("\nnet.ipv4.ip_forward = 1\n")
    assert ran == [["/usr/sbin/sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]]
    assert not container_network.ensure()
    assert len(ran) == 1
    live.write_text("0\n")
    assert container_network.ensure()
    assert len(ran) == 2


def test_a_machine_that_forwards_already_is_only_written_down(machine):
    drop_in, live, ran = machine
    live.write_text("1\n")
    assert container_network.ensure()
    assert drop_in.exists()
    assert ran == []


def test_the_tools_for_rules_are_installed(machine, monkeypatch):
    asked = []

    def ensure_installed(*names):
        asked.extend(names)
        return True

    container_network.ensure()
    monkeypatch.setattr(packages, "ensure_installed", ensure_installed)
    assert container_network.ensure()
    assert asked == ["iptables", "nftables"]


def test_removal_leaves_what_others_may_rest_on_until_the_next_boot(machine):
    drop_in, live, ran = machine
    container_network.ensure()
    assert container_network.remove()
    assert not drop_in.exists()
    assert live.read_text() == "1\n"
    assert len(ran) == 1
    assert not container_network.remove()
