# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-explain at the charm's door, over a decision log, usage records and a store on disk."""

import dataclasses
import datetime
import json

import pytest
from ops import testing

from actions import dispatch
from gpu_agent import paths
from gpu_agent.availability import external_use, quarantine
from gpu_agent.reporting.receipts import ledger, log
from gpu_agent.reporting.receipts.receipt import GpuReceipt, Receipt
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.decision_log import Decision
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder, Waiter
from tests.lab.commands_model import as_juju
from tests.unit.grants import in_use
from tests.unit.situations import GPUS, RUNTIME, state, tsa

TASK = "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
OTHER = "1c8d2f9e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
READ = quarantine.read


def time(seconds=0.0):
    moment = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"


class Unit:
    """What the GPU runtime and the GPU health service leave on a worker."""

    def __init__(self, context, folder):
        self.context, self.folder = context, folder
        paths.POLICY.write_text(install.policy_text(GpuPlan(GPUS, RUNTIME)))

    def decide(self, container, *gpus, reason="", kind="task", **values):
        decision = Decision(container)
        decision.kind, decision.asked = kind, len(gpus) or 1
        decision.granted, decision.reason = list(gpus), reason
        for name, value in values.items():
            setattr(decision, name, value)
        decision.write(str(paths.LOG))

    def receipt(self, container, gpu, *, began=-600, ended=0, **more):
        log.append(log.PATH, Receipt(
            time(began), time(ended), container, ended - began, "ended",
            (GpuReceipt(gpu, 0, "A100"),), **more,
        ))  # fmt: skip

    def explain(self, name, **params):
        params = {"name": name, **params}
        self.context.run(
            self.context.on.action("gpu-explain", params=params),
            state(relations=[tsa()], enable_gpu=True),
        )
        results = dict(self.context.action_results)
        if params.get("format") != "json":
            assert max(map(len, as_juju(results).splitlines())) <= 100
        return results


@pytest.fixture
def unit(context, rooms, tmp_path, monkeypatch):
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG", "QUARANTINE"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    monkeypatch.setattr(log, "PATH", tmp_path / "receipts.log")
    monkeypatch.setattr(ledger, "STATE", tmp_path / "accounts.json")
    return Unit(context, tmp_path)


def test_a_refused_and_a_granted_task(unit):
    unit.decide(OTHER, GPUS[0].uuid)
    unit.receipt(OTHER, GPUS[0].uuid, team="main", pipeline="train", job="fit", build="12")
    unit.decide(TASK, reason="this task waited 240 s for 1 GPU", waited_ms=240_000)
    (paths.QUARANTINE).mkdir()
    quarantine.put(GPUS[1].uuid, "Xid 79: it is gone", "xid", "quick", "")
    report = unit.explain(TASK)["report"]
    text = " ".join(report.split())
    assert "refused after waiting 4 min this task waited 240 s for 1 GPU" in text
    assert f"Held then GPU 0: container {OTHER} (main/train/fit/12)" in text
    assert "GPU 1 is quarantined: Xid 79: it is gone, since 20" in text
    results = unit.explain("main/train/fit/12")
    assert results.keys() == {"report"}
    assert f"granted: GPU 0 ({GPUS[0].uuid})" in " ".join(results["report"].split())


def test_a_lease_that_goes_on_and_a_request_that_waits(unit):
    now = Host.now()
    with Store(str(paths.STORE)) as table:
        holder = Holder("/b", [GPUS[0].uuid], [], exclusive=True, since=now - 90)
        holder.keeper, holder.who = Host().me(), 'docker container "train"'
        table.holders["4f0c" * 16] = holder
        table.waiters.append(Waiter(TASK, Host().me(), 2, now - 30))
    report = unit.explain("train")["report"]
    assert "Holds     GPU 0 since 20" in report
    report = unit.explain(TASK[:13])["report"]
    assert "position 1 in the queue" in report
    assert 'GPU 0: docker container "train", 20' in report


def test_the_build_of_a_lease_that_goes_on_is_known_from_its_open_account(unit):
    with Store(str(paths.STORE)) as table:
        holder = Holder("/b", [GPUS[0].uuid], [], exclusive=True, since=Host.now() - 90)
        holder.keeper = Host().me()
        table.holders[TASK] = holder
    receipt = Receipt(
        time(-90), time(), TASK, 90, "lost", (GpuReceipt(GPUS[0].uuid, 0),),
        team="main", pipeline="train", job="fit", build="13",
    )  # fmt: skip
    accounts = [
        {"since": 1.0, "began": 1.0, "receipt": one.as_line()}
        for one in (receipt, dataclasses.replace(receipt, container="gone"))
    ]
    ledger.STATE.write_text(json.dumps({"open": [*accounts, {"since": "x"}, 7]}))
    report = unit.explain("fit/13")["report"]
    assert "Build     main/train/fit/13" in report
    assert "Holds     GPU 0 since 20" in report


def test_several_are_listed_and_the_next_step_is_named(unit):
    unit.decide("task-1", reason="no")
    unit.decide("task-2", GPUS[0].uuid)
    results = unit.explain("task-")
    assert results["matches"] == "2"
    assert results["next"].startswith("juju run unit/0 gpu-explain name=")
    assert len(json.loads(unit.explain("task-", format="json")["json"])["cases"]) == 2


def test_nothing_found_says_where_it_looked_and_names_the_refused_tasks(unit):
    unit.decide(TASK, reason="this task waited 240 s for 1 GPU")
    results = unit.explain("main/train/fit/12", since="2h")
    assert results["state"] == "nothing found"
    assert f"container {TASK}" in results["refused-tasks"]
    searched = results["searched"]
    assert f"decision log ({paths.LOG}): back to 20" in " ".join(searched.split())
    assert results["next"].startswith("juju run unit/0 gpu-explain name=")
    assert json.loads(unit.explain("x", format="json")["json"])["matches"] == 0


def test_a_case_before_since_is_left_out(unit):
    unit.receipt(TASK, GPUS[0].uuid, began=-9000, ended=-8000)
    assert "report" in unit.explain(TASK, since="3h")
    assert unit.explain(TASK, since="2h")["state"] == "nothing found"


@pytest.mark.parametrize("since", ["soon", "7", "2099-01-01"])
def test_a_since_that_is_no_time_in_the_past_is_refused(unit, since):
    with pytest.raises(testing.ActionFailed, match=f"since '{since}' is "):
        unit.explain(TASK, since=since)


BROKEN = {
    "decision log": lambda: paths.LOG.mkdir(parents=True),
    "usage records": lambda: log.PATH.mkdir(parents=True),
    "records of open leases": lambda: ledger.STATE.write_text("{"),
    "leases": lambda: (paths.STORE.mkdir(), (paths.STORE / "leases.json").write_text("{")),
    "GPU policy": lambda: paths.POLICY.write_text("{"),
    "GPUs in use outside CI": lambda: paths.EXTERNAL.write_text(""),
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_source_that_cannot_be_read_is_named_and_the_others_are_used(unit, source):
    if source != "usage records":
        unit.receipt(TASK, GPUS[0].uuid)
    if source != "decision log":
        unit.decide(TASK, GPUS[0].uuid)
    BROKEN[source]()
    results = unit.explain(TASK)
    assert f"Container {TASK}" in results["report"]
    # A line may break anywhere in a long path.
    searched = "".join(results["searched"].split())
    _, name, rest = searched.partition("".join(f"{source} (".split()))
    assert name
    assert "):couldnotberead:" in rest
    assert searched.count("couldnotberead") == 1


def test_every_source_broken_at_once_is_no_failure(unit):
    for damage in BROKEN.values():
        damage()
    results = unit.explain(TASK)
    assert results["state"] == "nothing found"
    assert " ".join(results["searched"].split()).count("could not be read") == len(BROKEN)


def test_garbage_in_the_logs_is_counted(unit):
    unit.decide(TASK, GPUS[0].uuid)
    with paths.LOG.open("ab") as file:
        file.write(b"\xff\x00{[\n" + b"y" * 100_000 + b"\n")
    log.PATH.write_bytes(b'{"schema":1}\ntorn')
    searched = " ".join(unit.explain("nothing")["searched"].split())
    assert "3 damaged lines left out" in searched
    assert "2 damaged lines left out" in searched


def test_gpus_in_use_outside_ci_are_shown_to_who_waits_in_vain(unit):
    external_use.ensure([(GPUS[0].uuid, in_use("pid 4711 (python3)"))])
    unit.decide(TASK, reason="this task needs 2 GPUs, and this worker has 1")
    assert "GPU 0 is in use outside CI: pid 4711 (python3)" in unit.explain(TASK)["report"]


def test_the_action_changes_nothing():
    assert "gpu-explain" not in dispatch.CHANGING
