# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reload of NVIDIA's modules: what it takes away comes back, whatever ends or hinders it."""

import pytest

import effects
from gpu_agent.gpu.vendors.nvidia import kernel_modules
from gpu_agent.gpu.vendors.nvidia import kernel_modules as host_kernel_modules
from host import nvidia_driver as driver
from host import software
from lifecycle.driver_upgrade import steps as walk
from machine import packages, process, systemd
from machine import systemd as services
from plan.model import HostPlan

SERVICES = driver._SERVICES
MODULES = ("nvidia_peermem", "nvidia_uvm", "nvidia")


class Killed(BaseException):
    """Nothing after it is done."""


class Machine:
    """Services that run, modules that are loaded; what is asked for is done at once.

    Attributes:
        dies_in: the call in which this process is killed.
        hangs_in: the call that runs out of time.
        broken: the services that do not start.
        gone: those that systemd no longer knows.
    """

    def __init__(self):
        self.running, self.loaded = {*SERVICES}, {*MODULES}
        self.dies_in = self.hangs_in = self.refused = ""
        self.broken, self.gone = set(), set()

    def do(self, call):
        if self.dies_in == call:
            raise Killed
        if self.hangs_in == call:
            raise process.CommandError(["/usr/sbin/x", call], None, "no end within 120 s")

    def stop(self, name):
        self.do(f"stop {name}")
        self.running.discard(name)

    def start(self, name, *, restart):
        assert not restart
        self.do(f"start {name}")
        if name in self.broken | self.gone:
            raise process.CommandError(["/usr/bin/systemctl", "restart", name], 1, "it failed")
        self.running.add(name)

    def unload(self, modules):
        for module in modules:
            self.do(f"unload {module}")
            self.loaded.discard(module)
        return True

    def load(self):
        self.do("load")
        if not self.refused:
            self.loaded |= {"nvidia"}

    def add(self, modules):
        self.do("add")
        if self.loaded:
            self.loaded |= {*modules}

    def is_whole(self):
        """Whether all is as before, and nothing is left to be put back."""
        whole = (self.running, self.loaded) == ({*SERVICES}, {*MODULES})
        return whole and not driver._RELOAD.exists()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    machine = Machine()
    monkeypatch.setattr(driver, "_RELOAD", tmp_path / "driver-reload.json")
    for room, name, answer in (
        (services, "main_pid", lambda name: name in machine.running),
        (services, "show", lambda name, _: {"LoadState": ("loaded", "")[name in machine.gone]}),
        (services, "ensure_stopped", machine.stop),
        (services, "ensure_running", machine.start),
        (kernel_modules, "is_loaded", lambda: "nvidia" in machine.loaded),
        (kernel_modules, "refused", lambda _: machine.refused),
        (
            kernel_modules,
            "stack",
            lambda: tuple(name for name in MODULES if name in machine.loaded),
        ),
        (kernel_modules, "unload", machine.unload),
        (kernel_modules, "load", machine.load),
        (kernel_modules, "add", machine.add),
    ):
        monkeypatch.setattr(room, name, answer)
    return machine


KILLED = [f"stop {SERVICES[1]}", "unload nvidia_uvm", "unload nvidia", "load", "add"]
KILLED += [f"start {SERVICES[0]}", f"start {SERVICES[2]}"]


@pytest.fixture(params=KILLED)
def killed(machine, request, monkeypatch):
    """The machine after a hook that was killed somewhere in a reload."""
    machine.dies_in = request.param
    end = driver.end_reload
    if machine.dies_in.split()[0] in ("stop", "unload"):
        # A kill leaves no time to tidy up.
        monkeypatch.setattr(driver, "end_reload", lambda: False)
    with pytest.raises(Killed):
        driver.reload(print)
    monkeypatch.setattr(driver, "end_reload", end)
    machine.dies_in = ""
    return machine


def test_the_next_hook_puts_back_what_a_killed_one_has_stopped(killed, monkeypatch):
    """Before the upgrade goes on, to which the modules may be as they should."""
    went_on = []
    monkeypatch.setattr(walk, "settle", lambda *_: went_on.append(killed.is_whole()) or False)
    monkeypatch.setattr(software, "ensure", lambda *_: False)
    assert effects.equip(HostPlan(), None, print) is True
    assert went_on == [True]
    assert effects.equip(HostPlan(), None, print) is False


def test_another_reload_puts_back_what_a_killed_one_has_stopped(killed):
    assert driver.reload(print) is True
    assert killed.is_whole()


def test_a_service_that_does_not_start_keeps_no_other_from_it_and_is_tried_again(machine):
    machine.broken = {SERVICES[0]}
    assert driver.reload(print) is True
    assert machine.running == {*SERVICES[1:]}
    assert driver.end_reload() is False
    # The way back from a driver whose fabric manager does not start.
    assert driver.reload(print) is True
    machine.broken = set()
    assert driver.end_reload() is True
    assert machine.is_whole()


def test_a_service_that_is_gone_is_not_waited_for(machine):
    machine.gone = {SERVICES[2]}
    assert driver.reload(print) is True
    assert machine.running == {*SERVICES} - machine.gone
    assert not driver._RELOAD.exists()


@pytest.mark.parametrize(
    "call", [f"stop {SERVICES[0]}", "unload nvidia_uvm", "unload nvidia", "load"]
)
def test_what_hangs_is_no_word_against_the_driver_and_comes_back(machine, call):
    machine.hangs_in = call
    with pytest.raises(driver.DriverError, match="dmesg") as hung:
        driver.reload(print)
    assert hung.value.passes
    machine.hangs_in = ""
    assert machine.is_whole() or driver.end_reload()
    assert machine.is_whole()


def test_a_service_that_can_not_be_stopped_is_an_error_with_its_words(machine, monkeypatch):
    def fail(name):
        raise process.CommandError(["/usr/bin/systemctl", "stop", name], 1, "Access denied")

    monkeypatch.setattr(services, "ensure_stopped", fail)
    with pytest.raises(
        driver.DriverError, match="failed with 1: Access denied: see 'sudo dm"
    ) as e:
        driver.reload(print)
    assert not e.value.passes
    assert machine.is_whole()


def test_a_module_that_is_refused_is_told_as_such(machine):
    machine.refused = "Key was rejected by service"
    with pytest.raises(driver.DriverError, match=r"can't be loaded again: Key was rej") as refused:
        driver.reload(print)
    assert not refused.value.passes
    assert machine.running == {*SERVICES}


def test_a_start_at_boot_that_systemd_can_not_take_back_now_is_taken_back_by_the_next_release(
    tmp_path, monkeypatch
):
    record, asked = tmp_path / "driver-services.json", []

    def take_back(name):
        asked.append(name)
        if len(asked) == 1:
            raise process.CommandError(["/usr/bin/systemctl", "disable", name], None, "")
        return True

    record.write_text('["nvidia-fabricmanager.service"]')
    monkeypatch.setattr(driver, "_ENABLED", record)
    monkeypatch.setattr(driver, "_RELOAD", tmp_path / "driver-reload.json")
    monkeypatch.setattr(systemd, "ensure_not_enabled", take_back)
    monkeypatch.setattr(host_kernel_modules, "release", lambda: False)
    monkeypatch.setattr(packages, "release_holds", lambda _: False)
    assert driver.release() is False
    assert record.exists()
    assert driver.release() is True
    assert not record.exists()
    assert asked == ["nvidia-fabricmanager.service"] * 2
