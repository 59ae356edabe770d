# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's door: every event for every role.

The rooms that would change this machine are replaced by a recorder; what they do for real is
proven in tests/functional and tests/lab.
"""

import dataclasses
import errno

import pytest
from ops import testing

from ci.concourse import release
from gpu_agent.model import errors
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.verdict import Verdict
from gpu_selftest import service
from machine import download
from plan import messages
from plan.state import Quarantine
from tests.unit.grants import in_use
from tests.unit.situations import (
    GPUS,
    HOST_KEY,
    WORKER_KEY,
    database,
    state,
    tsa,
)

EVENTS = ("install", "start", "config_changed", "upgrade_charm", "update_status")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(
    ("mode", "relations", "expected"),
    [
        ("worker", (tsa(),), testing.ActiveStatus("Worker ready (GPU: 2x NVIDIA)")),
        ("web", (database(),), testing.ActiveStatus("Web ready")),
        ("all", (), testing.ActiveStatus("Web and worker ready (GPU: 2x NVIDIA)")),
    ],
)
def test_every_event_ends_in_the_same_state(context, rooms, event, mode, relations, expected):
    before = state(mode, relations, enable_gpu=True)
    after = context.run(getattr(context.on, event)(), before)
    assert after.unit_status == expected
    assert after.workload_version == "8.3.0"
    assert (rooms.worker is not None) == (mode != "web")
    assert (rooms.web is not None) == (mode != "worker")


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("mode", ["worker", "web"])
def test_a_lonely_unit_waits_and_names_the_next_step(context, rooms, event, mode):
    after = context.run(getattr(context.on, event)(), state(mode))
    endpoint = {"worker": "web-tsa", "web": "postgresql"}[mode]
    assert after.unit_status.name == "waiting"
    assert f":{endpoint} " in f"{after.unit_status.message} "
    assert "juju integrate" in after.unit_status.message
    assert rooms.worker is None
    assert rooms.web is None


def test_worker_tags_and_publishes_its_key(context, rooms):
    relation = tsa()
    before = state(relations=[relation], enable_gpu=True, extra_tags="rack-7", gpu_device_ids="1")
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.worker.tags[:8] == (
        "gpu",
        "gpu-type=nvidia",
        "gpu-count=1",
        "gpu-devices=1",
        "gpu-model=a100-sxm4-80gb",
        "gpu-memory=80GiB",
        "cuda=13.0",
        "driver=580",
    )
    assert rooms.worker.tags[-1] == "rack-7"
    assert rooms.gpu.gpus == GPUS[1:]
    assert rooms.worker.tsa_hosts == ("10.0.0.5:2222",)
    data = after.get_relation(relation.id).local_unit_data
    assert data["worker-public-key"] == WORKER_KEY


def test_a_bad_mode_blocks_and_leaves_everything_alone(context, rooms):
    before = state("wrk", relations=[tsa()], enable_gpu=True)
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status == testing.BlockedStatus(
        "deployment-mode 'wrk' is not allowed: use worker, web or all"
    )
    assert rooms.calls == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (download.UnreachableError("no route"), "waiting"),
        (download.DownloadError("another checksum"), "blocked"),
        (release.ReleaseError("no containerd in it"), "blocked"),
    ],
)
def test_a_release_that_cannot_be_had_is_told_from_one_that_may_come(context, rooms, error, kind):
    rooms.release_error = error
    after = context.run(context.on.config_changed(), state(relations=[tsa()]))
    assert (after.unit_status.name, after.unit_status.message) == (kind, str(error))


def test_a_machine_that_can_not_be_looked_at_waits_and_nothing_is_changed(context, rooms):
    """A job that takes all time or memory must not cost the worker its GPUs."""

    def fail():
        raise errors.UnknownError("This machine can't be looked at: no time")

    rooms.hand_in(machine=fail)
    before = state(relations=[tsa()], enable_gpu=True)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == testing.WaitingStatus("This machine can't be looked at: no time")
    assert rooms.calls == []


@pytest.mark.parametrize(
    "look", ["nodes", "gpus", "verdict", "quarantined", "driver", "toolkit", "upgrade"]
)
def test_gpus_that_can_not_be_looked_at_wait_and_nothing_is_changed(context, rooms, look):
    def fail(*_):
        raise OSError(errno.ENFILE, "Too many open files in system", "/sys/x")

    rooms.hand_in(**{look: fail})
    before = state(relations=[tsa()], enable_gpu=True)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == testing.WaitingStatus(
        "This machine can't be looked at, so nothing is changed for now: [Errno 23] Too many open "
        "files in system: '/sys/x'"
    )
    assert rooms.calls == []


def test_what_is_remembered_of_a_reboot_can_not_be_read_and_nothing_is_changed(context, rooms):
    (rooms.records.unit.folder / "rebooted-for").mkdir()
    before = state(relations=[tsa()], enable_gpu=True)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status.name == "waiting"
    assert "nothing is changed for now: [Errno 21] Is a directory" in after.unit_status.message
    assert rooms.calls == []


def test_an_unknown_gpu_id_blocks_and_the_worker_runs_on(context, rooms):
    before = state(relations=[tsa()], enable_gpu=True, gpu_device_ids="7")
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status.name == "blocked"
    assert "no GPU 7 on this machine, which has GPU 0, 1" in after.unit_status.message
    assert not {"worker.apply", "worker.remove", "runtime.remove"} & set(rooms.calls)


def test_disabling_takes_the_wrapper_away_after_the_worker_let_go(context, rooms):
    before = state(relations=[tsa()], enable_gpu=False)
    after = context.run(context.on.config_changed(), before)
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    assert rooms.worker.tags == ()
    assert not rooms.worker.wrapped
    assert rooms.calls.index("worker.apply") < rooms.calls.index("runtime.remove")
    assert "receipts.remove" not in rooms.calls


def test_a_lost_gpu_changes_tags_and_status_at_the_next_event(context, rooms):
    rooms.inventory = dataclasses.replace(rooms.inventory, gpus=GPUS[:1])
    after = context.run(context.on.update_status(), state(relations=[tsa()], enable_gpu=True))
    assert after.unit_status == testing.ActiveStatus("Worker ready (GPU: 1x NVIDIA)")
    assert "gpu-count=1" in rooms.worker.tags


IN_USE = (GPUS[1].uuid, in_use("pid 4711 (python3)"))


def test_a_gpu_that_others_use_is_kept_from_tasks_and_the_tags_stay(context, rooms):
    before = state(relations=[tsa()], enable_gpu=True)
    context.run(context.on.update_status(), before)
    tags = rooms.worker.tags
    assert rooms.kept_out == ()
    rooms.external = (IN_USE,)
    after = context.run(context.on.update_status(), before)
    assert after.unit_status == testing.ActiveStatus(
        "Worker ready (GPU: 1x NVIDIA, 1 in use outside CI: GPU 1)"
    )
    assert rooms.kept_out == (IN_USE,)
    assert rooms.worker.tags == tags
    assert rooms.gpu.gpus == GPUS


def test_external_use_is_recorded_while_the_worker_goes_on_with_what_it_had(context, rooms):
    rooms.external = (IN_USE,)
    before = state(relations=[tsa()], enable_gpu=True, gpu_device_ids="7")
    context.run(context.on.config_changed(), before)
    assert rooms.gpu is None
    assert rooms.kept_out == (IN_USE,)


def test_external_use_stays_recorded_while_nobody_knows_how_the_gpus_are(context, rooms):
    rooms.inventory = Inventory(State.NVML_ERROR, detail="its own words", vendor="nvidia")
    context.run(context.on.update_status(), state(relations=[tsa()], enable_gpu=True))
    assert "external_use.ensure" not in rooms.calls


def test_stop_retires_a_worker_whose_web_is_outside_juju(context, rooms):
    before = state(tsa_hosts="ci.example.com:2222", tsa_public_keys=HOST_KEY)
    context.run(context.on.stop(), before)
    assert rooms.calls == ["worker.retire"]
    assert rooms.leaving


def test_remove_takes_every_room_down(context, rooms):
    context.run(context.on.remove(), state())
    assert {
        "worker.remove",
        "web.remove",
        "engines.remove",
        "runtime.remove",
        "receipts.remove",
        "release.remove",
        "network.remove",
        "host software.remove",
    } <= set(rooms.calls)


XID = Quarantine("GPU-x", "Xid 79: it is gone", "xid", "quick", remedy="reboot the machine")


def test_tags_and_status_are_those_after_the_self_test(context, rooms):
    failed = dataclasses.replace(XID, uuid=GPUS[1].uuid)
    rooms.after_test = {"quarantined": (failed,), "verdict": Verdict("failed")}
    after = context.run(context.on.config_changed(), state(relations=[tsa()], enable_gpu=True))
    assert "gpu-count=1" in rooms.worker.tags
    assert after.unit_status == testing.ActiveStatus(
        "Worker ready (GPU: 1x NVIDIA, 1 quarantined: GPU 1 (Xid 79; reboot the machine))"
    )
    asked = [rooms.calls.index(name) for name in ("runtime.apply", "worker.apply")]
    (test,) = [n for n, call in enumerate(rooms.calls) if call.startswith("self-test.ensure")]
    assert asked[0] < test < asked[1], "before the worker takes jobs, and through its own wrapper"


def test_the_self_test_is_told_that_the_wrapper_was_repaired(context, rooms):
    before = state(relations=[tsa()], enable_gpu=True)
    context.run(context.on.config_changed(), before)
    context.run(context.on.config_changed(), before)
    told = [call for call in rooms.calls if call.startswith("self-test.ensure")]
    assert told == [f"self-test.ensure repaired={repaired}" for repaired in (True, False)]


def test_with_all_gpus_in_quarantine_the_worker_runs_on_without_the_tag_and_blocked(
    context, rooms
):
    rooms.quarantined = tuple(dataclasses.replace(XID, uuid=gpu.uuid) for gpu in GPUS)
    after = context.run(context.on.update_status(), state(relations=[tsa()], enable_gpu=True))
    assert rooms.worker.tags == ("gpu-unavailable",)
    assert rooms.worker.wrapped
    assert after.unit_status.name == "blocked"
    assert after.unit_status.message.startswith("All GPUs are unavailable (2 quarantined: ")


def test_a_self_test_without_a_verdict_blocks_in_words(context, rooms):
    def fail(*_, **__):
        raise service.SelftestError("The self-test ended without a verdict: it was killed")

    rooms.hand_in(test=fail)
    after = context.run(context.on.config_changed(), state(relations=[tsa()], enable_gpu=True))
    assert after.unit_status == testing.BlockedStatus(
        "The self-test ended without a verdict: it was killed"
    )


def test_gpus_that_no_task_gets_are_named(context, rooms):
    rooms.idle_gpus = 2
    after = context.run(context.on.update_status(), state("worker", [tsa()]))
    note = messages.text("gpus-not-enabled", found="2 GPUs", application="unit")
    assert after.unit_status.message == f"Worker ready ({note})"
    after = context.run(context.on.update_status(), state("worker", [tsa()], enable_gpu=True))
    assert "enable-gpu" not in after.unit_status.message


def test_the_log_has_the_gpus_at_install_and_on_each_change(context, rooms):
    """juju debug-log | grep -i gpu."""

    def told(event):
        context.juju_log.clear()
        context.run(event, state("worker", [tsa()], enable_gpu=True))
        return [
            one.message for one in context.juju_log if one.level == "INFO" and "GPU" in one.message
        ]

    first, second = (
        f"GPU {n} NVIDIA A100-SXM4-80GB 80 GiB at 0000:0{n + 1}:00.0, {GPUS[n].uuid}"
        for n in range(2)
    )
    (line,) = told(context.on.install())
    assert line.endswith(f"GPUs found: {first}; {second}; driver 580.95.05, CUDA 13.0")
    assert told(context.on.update_status()) == []
    rooms.inventory = dataclasses.replace(rooms.inventory, gpus=GPUS[:1])
    (line,) = told(context.on.update_status())
    assert line.endswith(f"GPUs found: {first}; driver 580.95.05, CUDA 13.0")
    rooms.inventory = dataclasses.replace(rooms.inventory, state=State.NVML_ERROR, detail="no")
    (line,) = told(context.on.update_status())
    assert "NVML failed: no" in line
