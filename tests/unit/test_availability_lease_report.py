# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the store of leases says to an operator, over recorded trees of /proc and bundles.

Reclaiming a GPU from real processes: tests/functional/test_availability_lease_report.py.
"""

import datetime
import json
import os
import shutil
import time

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_agent.gpu.vendors import report
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.model.leases import Lease
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import CONTAINER, JOB, Holder, Waiter
from tests.lab.commands_model import as_juju
from tests.unit.situations import gpu, sliced

RUNTIME = "/usr/bin/nvidia-container-runtime"
TASK = "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
OTHER = "1c8d2f9e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
SESSION = "77e0b7c1-3f0a-4f0e-6d2b-1a2b3c4d5e6f"


class Recorded(Host):
    """A recorded machine at one moment, which passes only while a kill waits for an end."""

    def __init__(self, root, uptime):
        super().__init__(str(root))
        self.root, self.moment = root, uptime

    def now(self):
        return self.moment

    def sleep(self, seconds):
        self.moment += seconds

    def take_hold(self, pid):
        return Killable(self.root, pid)


class Killable:
    """A recorded process, which dies unless its name in field 2 of its stat is `(stuck)`."""

    def __init__(self, root, pid):
        self.root, self.pid = root, pid

    def kill(self):
        folder = self.root / f"proc/{self.pid}"
        if "(stuck)" in (folder / "stat").read_text():
            return
        shutil.rmtree(folder)
        for path in self.root.rglob("cgroup.procs"):
            left = [line for line in path.read_text().split() if line != str(self.pid)]
            path.write_text("".join(f"{line}\n" for line in left))

    def close(self):
        pass


class Worker:
    """A worker's policy and store, and the processes of a machine of its own."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.root = folder, folder / "root"
        for name in ("POLICY", "STORE", "EXTERNAL", "QUARANTINE", "LOG"):
            monkeypatch.setattr(wrapper, name, folder / name.lower())
        self.store = Store(str(wrapper.STORE))
        self.uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
        monkeypatch.setattr(leases, "Host", lambda: Recorded(self.root, self.uptime))
        self.write("proc/self/mountinfo", "28 25 0:23 / /cg rw - cgroup2 cgroup2 rw\n")
        self.write("cg/cgroup.procs", "")
        self.pids = iter(range(100, 200))
        self.allow(gpu(0), gpu(1))

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def allow(self, *gpus, **options):
        wrapper.POLICY.write_text(install.policy_text(GpuPlan(gpus, RUNTIME, **options)))

    def cordon(self, name, reason):
        wrapper.EXTERNAL.mkdir(exist_ok=True)
        (wrapper.EXTERNAL / f"{name}.json").write_text(json.dumps({"reason": reason}))

    def process(self, cgroup="/", age=0.0):
        """A process of that age in seconds; its id and when it started."""
        pid = next(self.pids)
        started = int((self.uptime - age) * os.sysconf("SC_CLK_TCK"))
        folder = self.root / f"proc/{pid}"
        folder.mkdir(parents=True)
        fields = ["S", *["0"] * 16, "1", "0", str(started)]
        (folder / "stat").write_text(f"{pid} (sh) {' '.join(fields)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        return pid, started

    def hold(self, container, *gpus, steps=("task",), age=0.0, **values):
        """A lease, held for `age` seconds, of a container with these exec ids running in it."""
        cgroup = f"/garden/{container}"
        bundle = f"/run/bundles/{container}"
        (self.root / bundle[1:]).mkdir(parents=True)
        pids = [self.process(cgroup, age)[0] for _ in ("init", *steps)]
        for name, pid in zip(("init", *steps), pids, strict=True):
            (self.root / bundle[1:] / f"{name}.pid").write_text(str(pid))
        self.write(f"cg{cgroup}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
        holder = Holder(bundle, list(gpus), [], exclusive=True, since=self.uptime - age)
        holder.execs = bool(steps)
        for name, value in values.items():
            setattr(holder, name, value)
        with self.store as table:
            table.holders[container] = holder

    def wait(self, container, count, age, *, alive=True):
        call = self.process(age=age) if alive else (99, 1)
        with self.store as table:
            table.waiters.append(Waiter(container, call, count, self.uptime - age))

    def report(self):
        return leases.report()

    def read_json(self):
        return json.loads(leases.as_json())


@pytest.fixture
def worker(tmp_path, monkeypatch):
    return Worker(tmp_path, monkeypatch)


def test_a_worker_that_nobody_uses_yet(worker):
    assert worker.report() == {
        "allocation": "exclusive",
        "free": "2 of 2",
        "queue": "empty",
        "gpu-0": "free, A100-SXM4-80GB, GPU-0",
        "gpu-1": "free, A100-SXM4-80GB, GPU-1",
    }
    assert not wrapper.STORE.exists(), "a look makes nothing"


def test_a_worker_without_gpus_for_tasks(worker):
    wrapper.POLICY.unlink()
    assert worker.report() == {"state": "off: tasks get no GPU on this unit"}
    assert worker.read_json() == {}


@pytest.mark.parametrize(
    ("steps", "age", "words"),
    [
        (["task"], 35, "task, 35 s"),
        (["task"], 119, "task, 119 s"),
        (["task"], 120, "task, 2 min"),
        ([SESSION], 3599, "hijacked session, 59 min"),
        (["task", SESSION, TASK], 11100, "hijacked session and task, 3 h 5 min"),
        (["task"], 2 * 86400 + 3 * 3600 + 5, "task, 2 d 3 h"),
        ([], 12, "starting, 12 s"),
        ([], 75, "no longer used, 75 s"),
    ],
)
def test_a_holder_is_shown_with_its_kind_its_processes_and_since_when(worker, steps, age, words):
    worker.hold(TASK, "GPU-1", steps=steps, age=age)
    state = "free" if words.startswith("no longer") else "leased"
    runs, _, held = words.rpartition(", ")
    runs = f"runs: {runs}" if steps else runs
    first, holder, since = worker.report()["gpu-1"].splitlines()
    assert first == f"{state}, A100-SXM4-80GB, GPU-1"
    assert holder == f"  held by container {TASK} (CI step)"
    now = datetime.datetime.now(datetime.timezone.utc)
    began = [now - datetime.timedelta(seconds=age + late) for late in (-1, 0, 1, 2)]
    assert since in {f"  since {one:%F %T} UTC ({held}), {runs}" for one in began}
    with worker.store as table:
        assert leases.words(TASK, table.holders[TASK], leases.Host()) == (
            f"container {TASK} ({words})"
        )
    assert worker.report()["free"] == ("2 of 2" if state == "free" else "1 of 2")


def test_a_gpu_whose_processes_cannot_be_killed_is_not_called_free(worker):
    worker.hold(TASK, "GPU-1", steps=(), age=75, stuck=True)
    assert worker.report()["gpu-1"].endswith(" UTC (75 s), ended, but can't be killed")
    assert worker.report()["free"] == "1 of 2"


def test_a_store_made_anew_does_not_know_since_when(worker):
    worker.hold(TASK, "GPU-1", since=0)
    assert worker.report()["gpu-1"].endswith("since an unknown time, runs: task")
    assert worker.read_json()["containers"][TASK]["since"] == ""


def test_requests_stand_in_the_order_of_the_queue(worker):
    worker.hold(TASK, "GPU-0", "GPU-1", age=600)
    worker.wait("first", 2, age=130)
    worker.wait("gone", 1, age=100, alive=False)
    worker.wait("second", 1, age=7)
    results = worker.report()
    assert results["queue"] == "2 requests"
    first, second = "container first, requests 2 GPUs, ", "container second, requests 1 GPU, "
    assert results["queue-1"].startswith(f"{first}waiting 2 min (since 20")
    assert results["queue-2"].startswith(f"{second}waiting 7 s (since 20")
    assert "queue-3" not in results


def test_a_gpu_in_use_outside_ci_is_never_called_cordoned(worker):
    worker.cordon("GPU-0", "in use outside CI: pid 4711 (python3)")
    worker.cordon("GPU-1", "dirty: 12.3 GiB taken without a process")
    worker.hold(TASK, "GPU-1")
    results = worker.report()
    assert results["free"] == "0 of 2"
    assert results["gpu-0"] == ("in use outside CI: pid 4711 (python3), A100-SXM4-80GB, GPU-0")
    assert results["gpu-1"].startswith("leased, in use outside CI: 12.3 GiB taken without")


@pytest.mark.parametrize(
    ("level", "by", "way"),
    [
        ("compute", "self-test", "gpu-selftest level=compute passes, or by gpu-uncordon"),
        ("", "watch", "gpu-uncordon returns it"),
    ],
)
def test_a_quarantined_gpu_has_its_remedy_and_what_returns_it(worker, level, by, way):
    quarantine.put("GPU-0", "Xid 79", "xid", level, "Reboot the machine", by)
    told = " ".join(worker.report()["gpu-0"].split())
    assert told.startswith("quarantined: Xid 79, ")
    assert "Reboot the machine" in told
    assert told.endswith(way)


def test_a_gpu_that_is_not_allowed_any_more_is_told_while_it_is_held(worker):
    worker.hold(TASK, "GPU-7")
    worker.hold(OTHER, "GPU-8", steps=[], age=100)
    results = worker.report()
    assert results["other-0"].startswith(
        f"held outside policy, GPU-7\n  held by container {TASK} (CI step)\n  since 20"
    )
    assert "other-1" not in results


def test_mig_devices_stand_one_by_one(worker):
    worker.allow(sliced(0, "1g.10gb", "2g.20gb"), gpu(1))
    worker.cordon("GPU-0", "dirty: 2.0 GiB taken without a process")
    worker.hold(TASK, "MIG-0-1")
    results = worker.report()
    assert results["gpu-0-mig-0"].startswith("in use outside CI: 2.0 GiB")
    assert results["gpu-0-mig-1"].startswith("leased, in use outside CI: 2.0 GiB")
    assert results["gpu-1"].startswith("free")


def test_a_shared_gpu_names_few_and_counts_the_rest(worker):
    worker.allow(gpu(0), gpu(1), allocation="shared")
    for number in range(5):
        worker.hold(f"task-{number}", "GPU-0", "GPU-1", age=20, exclusive=False)
    results = worker.report()
    assert results["allocation"] == "shared"
    first, *holders, last = results["gpu-1"].splitlines()
    assert first == "shared by 5, A100-SXM4-80GB, GPU-1"
    assert [line.split()[3] for line in holders[::2]] == ["task-0", "task-1", "task-2"]
    assert last == "  and 2 more holders"
    assert len(worker.read_json()["devices"][1]["containers"]) == 5


def test_a_program_reads_all_of_it(worker):
    worker.hold(TASK, "GPU-1", age=35)
    worker.wait("first", 2, age=130)
    found = worker.read_json()
    assert found["allocation"] == "exclusive"
    assert found["devices"][1] == {
        "key": "gpu-1",
        "index": 1,
        "id": "GPU-1",
        "gpu": "GPU-1",
        "model": "NVIDIA A100-SXM4-80GB",
        "state": "leased",
        "containers": [TASK],
    }
    assert found["containers"] == {
        TASK: {
            "kind": "step",
            "who": f"container {TASK}",
            "gpus": ["GPU-1"],
            "steps": ["task"],
            "in_use": True,
            "handing_over": False,
            "stuck": False,
            "seconds": 35,
            "since": found["containers"][TASK]["since"],
        }
    }
    assert found["queue"] == [
        {
            "container": "first",
            "who": "container first",
            "count": 2,
            "named": [],
            "seconds": 130,
            "since": found["queue"][0]["since"],
            "overtaken": 0,
            "kept": 1,
        }
    ]


def test_a_gpu_that_is_handed_over_is_not_free(worker):
    worker.hold(TASK, "GPU-1", steps=(), age=100, execs=True)
    worker.wait("next", 2, age=5)
    looks = worker.process()
    assert worker.report()["gpu-1"].startswith("free, ")
    assert not leases.holders()[TASK].occupied
    with worker.store as table:
        table.holders[TASK].handing = looks, worker.uptime
    found = worker.report()
    assert (found["free"], found["queue"]) == ("1 of 2", "1 request")
    assert found["gpu-1"].startswith("handing over, A100-SXM4-80GB, GPU-1\n")
    assert found["gpu-1"].endswith(" UTC (100 s), ended")
    assert worker.read_json()["devices"][1]["state"] == "handing over"
    assert worker.read_json()["containers"][TASK]["handing_over"]
    assert leases.holders()[TASK].occupied
    # Who looked was killed.
    shutil.rmtree(worker.root / f"proc/{looks[0]}")
    assert worker.report()["gpu-1"].startswith("free, ")


@pytest.mark.parametrize("ask", [leases.report, lambda: leases.reclaim("0", "why", force=False)])
@pytest.mark.parametrize("name", ["POLICY", "STORE"])
def test_what_cannot_be_read_is_told_in_words(worker, ask, name):
    worker.hold(TASK, "GPU-1")
    path = wrapper.POLICY if name == "POLICY" else wrapper.STORE / "leases.json"
    path.write_text("{")
    with pytest.raises(leases.LeaseError, match=str(path)):
        ask()


def test_who_has_a_lease_is_known_before_anybody_is_called_a_stranger(worker):
    assert leases.holders() == {}
    worker.hold(TASK, "GPU-1")
    worker.hold(OTHER, "GPU-0", steps=[], age=100)
    assert leases.holders() == {
        TASK: Lease(("GPU-1",), occupied=True),
        OTHER: Lease(("GPU-0",), occupied=False),
    }
    (wrapper.STORE / "leases.json").write_text("{")
    assert leases.holders() is None


@pytest.mark.parametrize("wish", ["7", "GPU-7", "all", ""])
def test_an_unknown_gpu_is_answered_with_those_that_are_there(worker, wish):
    worker.hold(TASK, "GPU-9")
    with pytest.raises(leases.LeaseError) as caught:
        leases.reclaim(wish, "hangs", force=True)
    assert str(caught.value) == (
        f"No GPU here is {wish!r}; this unit has gpu-0 (GPU-0), gpu-1 (GPU-1), GPU-9"
    )


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "\x1b[2J"])
def test_a_reason_is_one_line(worker, reason):
    with pytest.raises(leases.LeaseError, match="one line"):
        leases.reclaim("0", reason, force=False)


def test_a_gpu_that_nobody_holds_is_free_already(worker):
    worker.hold(TASK, "GPU-1")
    assert leases.reclaim("0", "hangs", force=True) == {
        "gpu": "GPU-0",
        "was": "not held",
        "state": "free for the next request",
    }
    assert list(worker.store.read().holders) == [TASK]
    assert not wrapper.LOG.exists()


@pytest.mark.parametrize("wish", ["1", " gpu-1 ", "GPU-1"])
def test_a_gpu_in_use_is_left_to_its_holder(worker, wish):
    worker.hold(TASK, "GPU-1", age=200)
    with pytest.raises(leases.LeaseError) as caught:
        leases.reclaim(wish, "hangs", force=False)
    assert str(caught.value) == (
        f"GPU {wish.strip()} is in use by container {TASK} (task, 3 min): wait, abort the build, "
        "or use force=true, which kills its processes"
    )
    assert list(worker.store.read().holders) == [TASK]


def test_a_gpu_that_is_no_longer_used_is_given_back_and_the_reason_logged(worker):
    worker.hold(TASK, "GPU-0", "GPU-1", steps=[], age=100)
    worker.hold(OTHER, "GPU-8")
    assert leases.reclaim("1", " it hung ", force=False) == {
        "gpu": "GPU-1",
        "was": f"held by container {TASK}",
        "state": "free for the next request",
    }
    assert list(worker.store.read().holders) == [OTHER]
    line = json.loads(wrapper.LOG.read_text())
    assert (line["container"], line["kind"]) == (TASK, "gpu-reclaim")
    assert line["reason"] == "GPU-0, GPU-1: it hung"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("D", "they hang in the kernel, such as in the GPU's driver (see `sudo dmesg`)"),
        ("t", "they are stopped or traced, perhaps by each other"),
        ("R", "they start new processes as fast"),
    ],
)
def test_what_can_t_be_killed_is_told_by_its_state(worker, state, why):
    worker.hold(TASK, "GPU-0")
    pid = (worker.root / f"run/bundles/{TASK}/task.pid").read_text()
    path = worker.root / f"proc/{pid}/stat"
    path.write_text(path.read_text().replace("(sh) S", f"(stuck) {state}"))
    with pytest.raises(leases.LeaseError) as caught:
        leases.reclaim("0", "hangs", force=True)
    assert str(caught.value) == (
        f"Processes of container {TASK} cannot be killed: {why}. A reboot ends them"
    )
    assert list(worker.store.read().holders) == [TASK]


@pytest.mark.parametrize(("age", "overtaken", "kept"), [(31, 0, 1), (3, 8, 1), (3, 7, 0)])
def test_who_was_passed_over_for_long_has_gpus_kept_for_it(worker, age, overtaken, kept):
    worker.hold(TASK, "GPU-1")
    worker.wait("large", 2, age)
    worker.wait("small", 1, 2)
    with worker.store as table:
        table.waiters[0].overtaken = overtaken
    report = worker.report()
    assert f"container large, requests 2 GPUs, waiting {age} s" in report["queue-1"]
    assert ("1\n    reserved for it" in report["queue-1"]) == bool(kept)
    assert [request["kept"] for request in worker.read_json()["queue"]] == [kept, 0]


def test_a_gpu_that_is_not_allowed_any_more_can_be_released(worker):
    worker.hold(TASK, "GPU-9", steps=[], age=100)
    assert leases.reclaim("gpu-9", "hangs", force=False)["was"] == f"held by container {TASK}"


def test_all_mig_devices_of_a_gpu_are_released_by_its_index(worker):
    worker.allow(sliced(0, "1g.10gb", "2g.20gb"), gpu(1))
    worker.hold(TASK, "MIG-0-0", steps=[], age=100)
    worker.hold(OTHER, "MIG-0-1", steps=[], age=100)
    assert (
        leases.reclaim("gpu-0-mig-1", "hangs", force=False)["was"] == f"held by container {OTHER}"
    )
    assert leases.reclaim("0", "hangs", force=False)["gpu"] == "MIG-0-0, MIG-0-1"
    assert worker.store.read().holders == {}


def test_eight_gpus_with_long_names_fit_100_columns_as_juju_prints_them(worker):
    ids = [f"GPU-{number}a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9" for number in range(8)]
    model = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    cards = [gpu(number, uuid=name, model=model) for number, name in enumerate(ids)]
    worker.allow(*cards)
    unit = "gpu-run-1a2b3c4d5e6f.scope"
    who = "gpu-run of a-user-with-a-long-name: /opt/conda/envs/training/bin/python train.py"
    worker.hold(TASK, *ids[:2], steps=("task", SESSION), age=2 * 86400 + 11000)
    worker.hold(
        "4f0c" * 16, ids[2], steps=(), kind=CONTAINER, who=f'docker container "{"n" * 58}"'
    )
    worker.hold(unit, ids[3], kind=JOB, who=who, cgroup=f"/garden/{unit}")
    worker.hold(OTHER, ids[4], steps=(), stuck=True, age=75)
    worker.cordon(ids[5], "in use outside CI: pid 4711 (python3 -m a.very.long.module) and 3 more")
    worker.cordon(ids[6], "dirty: 12.3 GiB taken without a process")
    worker.wait("c" * 64, 8, 86400)
    worker.wait("named", 2, 7)
    with worker.store as table:
        table.waiters[0].who = f'podman container "{"m" * 58}"'
        table.waiters[1].named = ids[:2]
    found = worker.report()
    printed = as_juju(found).splitlines()
    assert max(map(len, printed)) <= 100, max(printed, key=len)
    assert len(printed) <= 50
    text = " ".join(" ".join(printed).split())
    for words in (*ids, f"container {TASK} (CI step)", "(engine container)", who):
        assert words in text
    assert "(gpu-run command)" in text
    cause = "in use outside CI: pid 4711 (python3 -m a.very.long.module) and 3 more"
    inventory = report.as_results(
        Inventory(State.READY, tuple(cards), vendor="nvidia"),
        ids[:5],
        dict.fromkeys(ids[5:], cause),
    )
    assert max(map(len, as_juju(inventory).splitlines())) <= 100
