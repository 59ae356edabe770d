# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Repair of GPUs in a hook: what is read, what is done, and what a killed hook leaves behind."""

import dataclasses
import datetime
import json
import time

import pytest

from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia import reset as gpu_reset
from gpu_agent.model.gpu_health import Health, RemappedRows
from gpu_agent.model.host import Driver
from gpu_agent.model.inventory import State
from gpu_agent.model.leases import Lease
from lifecycle.clock import Clock
from lifecycle.gpu_remediation import Gpus, Remediation
from lifecycle.remediation_record import RemediationRecord
from machine import process
from machine import systemd as services
from machine import systemd_transient as transient
from plan.gpu_remediation import Step
from plan.state import Quarantine
from tests.unit.grants import in_use
from tests.unit.situations import TSA, changed, gpu, make_plan, situation

TODAY = 1_800_000_000.0  # seconds since the epoch
WELL = Health(recovery_action=0, persistence=True)
SICK = dataclasses.replace(WELL, recovery_action=1)


class Killed(BaseException):
    """Nothing after it is done."""


class Settable(Clock):
    """A clock that a test sets."""

    def __init__(self):
        self.name, self.uptime, self.ahead = "first", 604800.0, 0.0

    def boot(self):
        return self.name

    def since_boot(self):
        return self.uptime

    def now(self):
        return TODAY + self.ahead


class Site(Gpus):
    """A machine with two GPUs, the first of which is quarantined."""

    def __init__(self, folder):
        self.state = changed(situation(gpu(0), gpu(1)), tsa=TSA)
        self.allow()
        self.clock = Settable()
        self.record = RemediationRecord(folder / "state", self.clock)
        self.out = {}
        self.put("recovery")
        self.asked = []
        self.driver_says = {"GPU-0": SICK, "GPU-1": WELL}
        self.held = {}
        self.resets = []
        self.why = ""
        self.after_reset = WELL
        self.error = None

    def allow(self, recovery="reset", reboot="none"):
        options = self.state.options
        options = dataclasses.replace(options, gpu_recovery=recovery, auto_reboot=reboot)
        self.state = dataclasses.replace(self.state, options=options)

    def put(self, check, level="isolation"):
        since = datetime.datetime.fromtimestamp(TODAY, datetime.timezone.utc).isoformat()
        self.out["GPU-0"] = Quarantine("GPU-0", "Xid 79: gone", check, level, since, "reboot")

    def hook(self, **changes):
        state = dataclasses.replace(self.state, **changes)
        return Remediation(self.record, self).ensure(state, make_plan(state), lambda _: None)

    def quarantined(self):
        return tuple(self.out.values())

    def retests(self):
        return {uuid for uuid, _ in self.asked}

    def have_tested(self, uuid, level, why):
        self.asked.append((uuid, level))

    def holders(self):
        return self.held

    def is_engaged(self):
        return False

    def health(self, vendor, uuids):
        return {uuid: self.driver_says[uuid] for uuid in uuids}

    def reset(self, reset, uuid, *, persistent):
        assert reset is registry.find("nvidia").reset
        self.resets.append((uuid, persistent))
        if self.error:
            raise self.error
        if not self.why:
            self.driver_says[uuid] = self.after_reset
        return self.why


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_gpu_whose_driver_asks_for_it_is_reset_once_and_tested(site):
    assert site.hook() == ()
    assert site.resets == [("GPU-0", True)]
    assert site.asked == [("GPU-0", "isolation")]
    assert site.record.read().outcome == "it was reset"
    assert site.hook() == ()
    assert len(site.resets) == 1


@pytest.mark.parametrize(
    "health",
    [
        dataclasses.replace(WELL, remapped_rows=RemappedRows(0, 1, pending=True, failed=False)),
        dataclasses.replace(WELL, retired_pages_pending=True),
        dataclasses.replace(WELL, uncorrected_volatile=1),
    ],
)
def test_what_else_a_reset_is_for(site, health):
    site.driver_says["GPU-0"] = health
    site.hook()
    assert [uuid for uuid, _ in site.resets] == ["GPU-0"]


def test_a_gpu_that_is_well_or_not_out_is_let_alone(site):
    site.driver_says = {"GPU-0": WELL, "GPU-1": SICK}
    assert site.hook() == ()
    assert site.resets == []


@pytest.mark.parametrize(
    "change",
    [
        lambda site: site.allow("none"),
        lambda site: site.put("", level=""),
        lambda site: site.held.update(job=Lease(("GPU-0",))),
        lambda site: setattr(site, "held", None),
        lambda site: site.driver_says.update({"GPU-0": dataclasses.replace(SICK, computing=True)}),
    ],
)
def test_never_without_the_option_under_a_job_or_against_the_operator(site, change):
    change(site)
    assert site.hook() == ()
    assert site.resets == []


@pytest.mark.parametrize(
    "change",
    [
        {"driver": Driver(container=True)},
        {"driver": Driver(changing=True)},
        {"external": (("GPU-0", in_use("pid 1 (x)")),)},
        {"leaving": True},
        {"inventory": None},
        {"inventory": situation(state=State.MISMATCH).inventory},
    ],
)
def test_never_where_something_else_has_the_gpus(site, change):
    site.allow(reboot="gpu")
    assert site.hook(**change) == ()
    assert site.resets == []


def test_in_a_container_that_is_said(site, caplog):
    site.hook(driver=Driver(container=True))
    assert "cannot reset GPU-0 here" in caplog.text


def test_joined_gpus_wait_for_each_other(site):
    site.held = {"job": Lease(("GPU-1",))}
    site.hook(driver=Driver(nvswitch=True))
    assert site.resets == []
    site.hook()
    assert len(site.resets) == 1


def test_a_reset_that_fails_is_told_and_leaves_a_reboot_where_that_may_be(site, caplog):
    site.why = "GPU 00000000:01:00.0 is currently in use by another process."
    assert site.hook() == ()
    assert "no reset: GPU 00000000:01:00.0 is currently in use" in caplog.text
    assert site.asked == []
    site.allow(reboot="gpu")
    assert site.hook() == ("GPU-0",)
    assert len(site.resets) == 1


def test_a_gpu_that_was_reset_is_tested_before_the_machine_is_rebooted_for_it(site):
    """Where the driver tells of no action: it can't be seen whether the reset helped."""
    site.allow(reboot="gpu")
    site.driver_says["GPU-0"] = dataclasses.replace(WELL, recovery_action=None)
    site.after_reset = site.driver_says["GPU-0"]
    site.put("xid")
    for _ in range(2):
        assert site.hook() == ()
        assert (len(site.resets), site.asked) == (1, [("GPU-0", "isolation")])
    site.asked.clear()  # it has failed
    assert site.hook() == ("GPU-0",)
    assert len(site.resets) == 1


def test_a_hook_that_is_killed_in_a_reset_makes_no_second_one(site):
    site.error = Killed()
    with pytest.raises(Killed):
        site.hook()
    site.error = None
    assert site.hook() == ()
    assert len(site.resets) == 1


def test_what_can_not_be_noted_is_not_done(site, caplog):
    site.record.folder.write_text("")
    assert site.hook() == ()
    assert site.resets == []
    assert "Not a directory" in caplog.text or "File exists" in caplog.text


def test_a_driver_that_hangs_gives_no_report(tmp_path):
    vendor = dataclasses.replace(registry.find("nvidia"), health=lambda _: time.sleep(60))
    assert Gpus(patience=0.2, hangs=tmp_path / "hangs").health(vendor, ("GPU-0",)) == {}


def test_gpus_of_a_hung_driver_or_lost_ones_are_what_a_reboot_is_for(site):
    site.allow(reboot="gpu")
    assert site.hook(inventory=situation(state=State.HUNG).inventory) == ("GPU-0",)
    assert site.hook(inventory=situation(gpu(1)).inventory) == ("GPU-0",)
    assert site.resets == []


def test_where_resets_are_not_allowed_the_gpu_is_rebooted_for_and_nothing_without_either(site):
    site.allow("none", reboot="gpu")
    assert site.hook() == ("GPU-0",)
    site.allow("none", reboot="driver")
    assert site.hook() == ()
    assert site.resets == []


def test_after_the_reboot_it_is_tested_and_brings_no_second_one(site):
    site.allow(reboot="gpu")
    site.driver_says["GPU-0"] = dataclasses.replace(SICK, recovery_action=2)
    assert site.hook() == ("GPU-0",)
    site.record.begin(Step.REBOOT, ("GPU-0",))
    # A hook that comes before the machine goes.
    assert site.hook() == ()
    assert site.asked == []
    site.clock.name, site.clock.uptime, site.clock.ahead = "second", 0.0, 2 * 24 * 3600
    assert site.hook() == ()
    assert site.asked == [("GPU-0", "isolation")]


@pytest.mark.parametrize("text", ["{", "[]", "null", "{}", '{"made": [{"step": "x"}]}', "\xff"])
def test_a_damaged_record_allows_no_reboot_for_a_day(site, caplog, text):
    site.allow(reboot="gpu")
    site.driver_says["GPU-0"] = dataclasses.replace(SICK, recovery_action=2)
    site.record.folder.mkdir()
    site.record.path.write_text(text, encoding="latin-1")
    assert site.hook() == ()
    assert "is damaged" in caplog.text
    assert json.loads(site.record.path.read_text())["made"]


class Systemd:
    """What a reset asks systemd for."""

    def __init__(self, tmp_path, monkeypatch):
        self.asked = []
        self.shown = {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
        self.pid = 4711
        self.error = None
        self.said = ""
        monkeypatch.setattr(gpu_reset, "LOG", tmp_path / "log/reset.log")
        monkeypatch.setattr(gpu_reset, "_PATIENCE", 0.1)
        monkeypatch.setattr(gpu_reset, "_POLL", 0.01)
        monkeypatch.setattr(transient, "start", self.start)
        monkeypatch.setattr(services, "main_pid", lambda _: self.pid)
        monkeypatch.setattr(services, "show", lambda _, *names: {n: self.shown[n] for n in names})
        monkeypatch.setattr(services, "forget_failure", lambda _: None)

    def start(self, name, argv, *, description, properties):
        if self.error:
            raise self.error
        self.asked.append((argv, properties))
        if self.said:
            gpu_reset.LOG.write_text(self.said)


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    return Systemd(tmp_path, monkeypatch)


def test_what_has_the_gpu_open_is_out_of_the_way_and_put_back_by_systemd(systemd):
    assert gpu_reset.reset("GPU-0", persistent=True, beside="watch.service") == ""
    ((argv, properties),) = systemd.asked
    script = (
        "/usr/bin/systemctl stop watch.service; /usr/bin/nvidia-smi -pm 0 -i GPU-0 "
        ">/dev/null 2>&1; "
        "exec /usr/bin/nvidia-smi --gpu-reset -i GPU-0"
    )
    assert argv == ["/bin/sh", "-c", script]
    assert properties["ExecStopPost"] == (
        "-/bin/sh -c '/usr/bin/nvidia-smi -pm 1 -i GPU-0 >/dev/null 2>&1; "
        "/usr/bin/systemctl start --no-block watch.service'"
    )


def test_what_was_not_there_is_not_brought(systemd):
    systemd.pid = 0
    gpu_reset.reset("GPU-0", persistent=False, beside="watch.service")
    ((argv, properties),) = systemd.asked
    assert "systemctl" not in argv[2]
    assert "ExecStopPost" not in properties


def test_what_a_reset_says_against_itself_is_one_line(systemd):
    systemd.shown |= {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "255"}
    systemd.said = "GPU 0 is in use.\n\n1 device\x1b[31m is used.\nAll done.\n"
    assert (
        gpu_reset.reset("GPU-0", persistent=False) == "GPU 0 is in use. / 1 device [31m is used."
    )
    systemd.said = "\n"
    assert gpu_reset.reset("GPU-0", persistent=False) == "it ended with exit-code 255"


def test_one_that_hangs_or_can_not_be_started_is_told(systemd):
    systemd.shown["ActiveState"] = "deactivating"
    assert gpu_reset.reset("GPU-0", persistent=False) == "it does not end"
    assert gpu_reset.is_running()
    systemd.error = process.CommandError(["/usr/bin/systemd-run"], 1, "no such file")
    assert gpu_reset.reset("GPU-0", persistent=False).endswith("no such file")


@pytest.mark.parametrize("uuid", ["", "../x", "GPU-0; reboot", "GPU-0\n", "$(x)", "-x", "%i"])
def test_no_words_reach_a_shell(systemd, uuid):
    with pytest.raises(ValueError, match="is not the id of a GPU"):
        gpu_reset.reset(uuid, persistent=True)
    assert systemd.asked == []
