# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reload of NVIDIA's modules: what it takes away comes back, whatever ends or hinders it."""

import pytest

from effects import Equip
from host import nvidia_fabric_manager
from host.nvidia_driver_reload import SERVICES, Reload
from machine import packages, process
from plan.model import HostPlan

MODULES = ("nvidia_peermem", "nvidia_uvm", "nvidia")


class Killed(BaseException):
    """Nothing after it is done."""


class Machine:
    """Services that run, modules that are loaded; what is asked for is done at once.

    It is both the systemd and the modules of a reload, which is kept in `reload`.

    Attributes:
        dies_in: the call in which this process is killed.
        dead: whether it was killed: nothing else is done.
        hangs_in: the call that runs out of time.
        denied: the service that systemd refuses to stop.
        refused_with: what modprobe says of nvidia; empty: it can be loaded.
        broken: the services that do not start.
        gone: those that systemd no longer knows.
    """

    def __init__(self, folder):
        self.reload = Reload(folder / "driver-reload.json", self, self)
        self.running, self.loaded = {*SERVICES}, {*MODULES}
        self.dies_in = self.hangs_in = self.denied = self.refused_with = ""
        self.broken, self.gone, self.dead = set(), set(), False

    def do(self, call):
        if self.dead or self.dies_in == call:
            self.dead = True
            raise Killed
        if self.hangs_in == call:
            raise process.CommandError(["/usr/sbin/x", call], None, "no end within 120 s")

    def main_pid(self, name):
        return 4711 if name in self.running else 0

    def show(self, name, _):
        return {"LoadState": "" if name in self.gone else "loaded"}

    def ensure_stopped(self, name):
        self.do(f"stop {name}")
        if name == self.denied:
            raise process.CommandError(["/usr/bin/systemctl", "stop", name], 1, "Access denied")
        self.running.discard(name)

    def ensure_running(self, name, *, restart):
        assert not restart
        self.do(f"start {name}")
        if name in self.broken | self.gone:
            raise process.CommandError(["/usr/bin/systemctl", "restart", name], 1, "it failed")
        self.running.add(name)

    def stack(self):
        return tuple(name for name in MODULES if name in self.loaded)

    def is_loaded(self):
        return "nvidia" in self.loaded

    def refused(self, _):
        return self.refused_with

    def unload(self, modules):
        for module in modules:
            self.do(f"unload {module}")
            self.loaded.discard(module)
        return True

    def load(self):
        self.do("load")
        if not self.refused_with:
            self.loaded |= {"nvidia"}

    def add(self, modules):
        self.do("add")
        if self.loaded:
            self.loaded |= {*modules}

    def is_whole(self):
        """Whether all is as before, and nothing is left to be put back."""
        whole = (self.running, self.loaded) == ({*SERVICES}, {*MODULES})
        return whole and not self.reload.record.exists()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


KILLED = [f"stop {SERVICES[1]}", "unload nvidia_uvm", "unload nvidia", "load", "add"]
KILLED += [f"start {SERVICES[0]}", f"start {SERVICES[2]}"]


@pytest.fixture(params=KILLED)
def killed(machine, request):
    """The machine after a hook that was killed somewhere in a reload."""
    machine.dies_in = request.param
    with pytest.raises(Killed):
        machine.reload.run(print)
    machine.dies_in, machine.dead = "", False
    return machine


def test_the_next_hook_puts_back_what_a_killed_one_has_stopped(killed):
    """Before the upgrade goes on, to which the modules may be as they should."""
    went_on = []

    class Upgrade:
        def __init__(self, drainer):
            assert drainer is None

        def settle(self, _):
            went_on.append(killed.is_whole())
            return False

    equip = Equip(killed.reload.end, Upgrade, lambda *_: False)
    assert equip(HostPlan(), None, print) is True
    assert went_on == [True]
    assert equip(HostPlan(), None, print) is False


def test_another_reload_puts_back_what_a_killed_one_has_stopped(killed):
    assert killed.reload.run(print) is True
    assert killed.is_whole()


def test_a_service_that_does_not_start_keeps_no_other_from_it_and_is_tried_again(machine):
    machine.broken = {SERVICES[0]}
    assert machine.reload.run(print) is True
    assert machine.running == {*SERVICES[1:]}
    assert machine.reload.end() is False
    # The way back from a driver whose fabric manager does not start.
    assert machine.reload.run(print) is True
    machine.broken = set()
    assert machine.reload.end() is True
    assert machine.is_whole()


def test_a_service_that_is_gone_is_not_waited_for(machine):
    machine.gone = {SERVICES[2]}
    assert machine.reload.run(print) is True
    assert machine.running == {*SERVICES} - machine.gone
    assert not machine.reload.record.exists()


@pytest.mark.parametrize(
    "call", [f"stop {SERVICES[0]}", "unload nvidia_uvm", "unload nvidia", "load"]
)
def test_what_hangs_is_no_word_against_the_driver_and_comes_back(machine, call):
    machine.hangs_in = call
    with pytest.raises(packages.PackageError, match="dmesg") as hung:
        machine.reload.run(print)
    assert hung.value.passes
    machine.hangs_in = ""
    assert machine.is_whole() or machine.reload.end()
    assert machine.is_whole()


def test_a_service_that_can_not_be_stopped_is_an_error_with_its_words(machine):
    machine.denied = SERVICES[0]
    with pytest.raises(
        packages.PackageError, match="failed with 1: Access denied: see 'sudo dm"
    ) as e:
        machine.reload.run(print)
    assert not e.value.passes
    assert machine.is_whole()


def test_a_module_that_is_refused_is_told_as_such(machine):
    machine.refused_with = "Key was rejected by service"
    with pytest.raises(
        packages.PackageError, match=r"can't be loaded again: Key was rej"
    ) as refused:
        machine.reload.run(print)
    assert not refused.value.passes
    assert machine.running == {*SERVICES}


def test_a_start_at_boot_that_systemd_can_not_take_back_now_is_taken_back_by_the_next_release(
    tmp_path,
):
    record, asked = tmp_path / "driver-services.json", []

    def disable(name):
        asked.append(name)
        if len(asked) == 1:
            raise process.CommandError(["/usr/bin/systemctl", "disable", name], None, "")
        return True

    record.write_text('["nvidia-fabricmanager.service"]')
    assert nvidia_fabric_manager.release(record, disable) is False
    assert record.exists()
    assert nvidia_fabric_manager.release(record, disable) is True
    assert not record.exists()
    assert asked == ["nvidia-fabricmanager.service"] * 2
