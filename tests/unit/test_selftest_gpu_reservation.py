# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs that the self-test has alone, with the real wrapper, store and processes."""

import json
import subprocess
import sys
import threading

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import external_use, quarantine
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import RUNNER, Holder, Waiter
from gpu_selftest import gpu_reservation as reserve
from tests.unit.grants import MIG_GPUS, golden, in_use
from tests.unit.wrapper_rig import GPUS, ROOT, Rig

IDS = [gpu["uuid"] for gpu in GPUS]
SELFTEST = "gpu-selftest-1"


@pytest.fixture
def rig(tmp_path, monkeypatch):
    rig = Rig(tmp_path)
    monkeypatch.setattr(wrapper, "STORE", rig.store)
    monkeypatch.setattr(wrapper, "POLICY", rig.policy_path)
    monkeypatch.setattr(wrapper, "EXTERNAL", tmp_path / "cordons")
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    allow(rig)
    return rig


def allow(rig, **changes):
    rig.policy(cordons=[str(wrapper.EXTERNAL), str(paths.QUARANTINE)], **changes)


def create(rig, *params, name="ID"):
    config = golden("task")
    config["process"]["env"] = ["PATH=/bin", "ATC_EXTERNAL_URL=http://127.0.0.1:8080", *params]
    rig.config.write_text(json.dumps(config))
    return rig.call("create", "--bundle", rig.bundle, name)


def visible(rig):
    entries = json.loads(rig.config.read_text())["process"]["env"]
    return dict(entry.split("=", 1) for entry in entries)["NVIDIA_VISIBLE_DEVICES"]


def wait_for(rig, count):
    """Let a living process wait for so many GPUs."""
    with Store(str(rig.store)) as table:
        table.waiters.append(Waiter("WAITER", Host().me(), count, Host.now()))


def test_a_free_gpu_is_the_self_tests_alone_and_everybodys_again(rig):
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert create(rig) == 42
        assert visible(rig) == IDS[1]
        assert rig.holders[SELFTEST]["gpus"] == IDS[:1]
        assert rig.holders[SELFTEST]["exclusive"]
    assert list(rig.holders) == ["ID"]
    assert create(rig, "GPU_COUNT=2") == 42


@pytest.mark.parametrize("allocation", ["exclusive", "shared"])
@pytest.mark.parametrize("params", [[], ["GPU_COUNT=1"], ["GPU_COUNT=2"], ["GPU_COUNT=all"]])
def test_its_container_gets_just_that_gpu_whatever_it_asks_for(rig, allocation, params):
    allow(rig, allocation=allocation, gpus_per_task=2)
    with reserve.alone(SELFTEST, IDS[1:]) as why:
        assert why is None
        assert create(rig, *params, name=SELFTEST) == 42
        assert rig.ran[0] == "nvidia-container-runtime"
        assert visible(rig) == IDS[1]
        holder = rig.holders[SELFTEST]
        assert (holder["gpus"], holder["exclusive"]) == (IDS[1:], True)
        assert holder["bundle"] == str(rig.bundle)
        assert holder["keeper"] == [*Host().me()]
        rig.process.write_text(json.dumps({"args": ["sh"], "env": ["A=b"], "cwd": "/"}))
        assert rig.call("exec", "--process", rig.process, SELFTEST) == 42
        assert f"NVIDIA_VISIBLE_DEVICES={IDS[1]}" in json.loads(rig.process.read_text())["env"]
    assert rig.holders == {}


def test_it_gets_none_if_it_says_so(rig):
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert create(rig, "GPU_COUNT=0", name=SELFTEST) == 42
        assert (rig.ran[0], visible(rig)) == ("runc", "void")


def test_a_quarantined_gpu_is_its_containers_and_no_others(rig):
    for name in IDS:
        quarantine.put(name, "Xid 79: the GPU has fallen off the bus", "xid", "quick", "")
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert create(rig, name=SELFTEST) == 42
        assert visible(rig) == IDS[0]
        assert create(rig) == 1
        assert "this worker has 0 available" in rig.refusal


def test_who_has_a_gpu_keeps_it(rig):
    rig.hold(JOB=IDS[1:])
    with reserve.alone(SELFTEST, IDS) as why:
        assert why.text == "GPU 1 is in use by container JOB (starting, 12 min)"
        assert why.cause == "GPU 1 is in use"
    assert list(rig.holders) == ["JOB"]
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None


@pytest.mark.parametrize("exclusive", [True, False])
def test_who_shares_a_gpu_keeps_it_and_the_others_are_shared_meanwhile(rig, exclusive):
    allow(rig, allocation="shared")
    rig.hold(JOB=IDS[1:])
    with Store(str(rig.store)) as table:
        table.holders["JOB"].exclusive = exclusive
    with reserve.alone(SELFTEST, IDS[1:]) as why:
        assert why.text == "GPU 1 is in use by container JOB (starting, 12 min)"
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert create(rig) == (1 if exclusive else 42)
        if not exclusive:
            assert visible(rig) == IDS[1]
            assert create(rig, "GPU_COUNT=2") == 1
            assert "GPU 0 by container gpu-selftest-1" in rig.refusal


def test_two_leases_at_once_are_disjoint(rig):
    with reserve.alone("gpu-selftest-1", IDS[:1]) as first:
        with reserve.alone("gpu-selftest-2", IDS[1:]) as second:
            assert (first, second) == (None, None)
            assert create(rig, name="gpu-selftest-2") == 42
            assert visible(rig) == IDS[1]
        with reserve.alone("gpu-selftest-3", IDS[:1]) as third:
            assert third.text.startswith(
                "GPU 0 is in use by container gpu-selftest-1 (self-test, "
            )
        assert list(rig.holders) == ["gpu-selftest-1"]
    assert rig.holders == {}


def test_the_end_of_a_look_at_who_has_it_open_is_waited_for(rig):
    """Else a self-test would be incomplete for its own last container, which is looked at."""
    with Store(str(rig.store)) as table:
        holder = Holder("/gone", IDS[:1], [], exclusive=True, since=0)
        holder.handing = (Host().me(), Host.now())
        table.holders["OVER"] = holder

    def end():
        with Store(str(rig.store)) as table:
            del table.holders["OVER"]

    looks = threading.Timer(0.3, end)
    looks.start()
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
    looks.join()


def test_an_id_is_used_once_at_a_time(rig):
    with reserve.alone(SELFTEST, IDS[:1]) as first:
        assert first is None
        with reserve.alone(SELFTEST, IDS[1:]) as second:
            assert second.text.startswith(f"container {SELFTEST} (self-test, ")
            assert second.text.endswith(" s) has not ended")
        assert rig.holders[SELFTEST]["gpus"] == IDS[:1]
    with reserve.alone(SELFTEST, IDS[1:]) as third:
        assert third is None


@pytest.mark.parametrize("allocation", ["exclusive", "shared"])
def test_a_task_that_waits_comes_first(rig, allocation):
    allow(rig, allocation=allocation)
    wait_for(rig, 2)
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why.text == "a task waits for GPU 0"
    assert rig.holders == {}


def test_a_task_that_would_not_get_it_is_no_reason(rig):
    quarantine.put(IDS[0], "Xid 79", "xid", "quick", "")
    wait_for(rig, 1)
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
    with reserve.alone(SELFTEST, IDS[1:]) as why:
        assert why.text == "a task waits for GPU 1"


def test_what_somebody_outside_uses_is_left_alone(rig):
    external_use.ensure([(IDS[1], in_use("pid 4711 (python3)"))])
    with reserve.alone(SELFTEST, IDS) as why:
        assert why.text == "GPU 1 is in use outside CI: pid 4711 (python3)"
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None


def test_the_mig_devices_of_a_gpu_are_taken_together(rig):
    allow(rig, gpus=MIG_GPUS)
    first, second = MIG_GPUS[0]["devices"]
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert rig.holders[SELFTEST]["gpus"] == [first, second]
        assert create(rig, name=SELFTEST) == 42
        assert visible(rig) == f"{first},{second}"
    rig.hold(JOB=[second])
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why.text == f"GPU 0 ({second}) is in use by container JOB (starting, 12 min)"
    with reserve.alone(SELFTEST, [first]) as why:
        assert why is None


@pytest.mark.parametrize("gpus", [["GPU-9"], [IDS[0], "GPU-9"]])
def test_what_is_no_gpu_of_this_worker(rig, gpus):
    with reserve.alone(SELFTEST, gpus) as why:
        assert why.text == "GPU-9 is not a GPU that tasks get on this worker"
    assert not rig.store.exists()


def test_without_a_policy_or_with_damaged_leases_it_says_so(rig):
    rig.store.mkdir(parents=True)
    (rig.store / "leases.json").write_text("{")
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert "leases.json is damaged" in why.text
    rig.policy_path.unlink()
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why.text == f"{IDS[0]} is not a GPU that tasks get on this worker"


def test_leases_that_are_damaged_meanwhile_spoil_no_result(rig):
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        (rig.store / "leases.json").write_text("{")


def test_an_error_in_the_test_gives_the_gpu_back(rig):
    with pytest.raises(ZeroDivisionError), reserve.alone(SELFTEST, IDS[:1]):
        print(1 / 0)
    assert rig.holders == {}


KILLED = f"""
import os, pathlib, signal, sys
sys.path[:0] = [{str(ROOT / "lib")!r}, {str(ROOT / "src")!r}]
from gpu_agent import paths as wrapper
from gpu_selftest import gpu_reservation as reserve
wrapper.STORE, wrapper.POLICY = map(pathlib.Path, sys.argv[1:3])
with reserve.alone({SELFTEST!r}, sys.argv[3:]) as why:
    print(why, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_it_leaves_nothing_that_lasts(rig):
    command = [sys.executable, "-c", KILLED, str(rig.store), str(rig.policy_path), *IDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-9, "None\n", "")
    assert rig.holders[SELFTEST]["gpus"] == IDS
    assert create(rig, "GPU_COUNT=2") == 42
    assert list(rig.holders) == ["ID"]


def idle_runner(rig, name="idle runner w-1"):
    """A runner of a CI service with both GPUs; its unit is a process that the test may end."""
    holder = Holder("", IDS[:1], [], exclusive=True, since=Host.now())
    holder.kind, holder.who, holder.keeper = RUNNER, name, Host().me()
    with Store(str(rig.store)) as table:
        table.holders["gpu-ci-runner-w-1.service"] = holder


def test_an_idle_runner_gives_way_to_the_self_test(rig):
    """As the daemon does: it ends the runner once a request waits for its GPU."""
    idle_runner(rig)
    asked = []

    def give_way():
        store = Store(str(rig.store))
        while not asked:
            with store as table:
                asked.extend((one.who, one.named) for one in table.waiters)
                if asked:
                    table.holders.clear()

    daemon = threading.Thread(target=give_way, daemon=True)
    daemon.start()
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert why is None
        assert Store(str(rig.store)).read().waiters == []
    daemon.join(10)
    assert asked == [("the self-test", IDS[:1])]


def test_a_runner_with_a_job_is_not_waited_for(rig):
    idle_runner(rig, 'job "build" of a/b, run 1')
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert "is in use by" in why.text
    assert Store(str(rig.store)).read().waiters == []


def test_it_waits_for_no_runner_forever_and_leaves_the_queue(rig, monkeypatch):
    monkeypatch.setattr(reserve.leases, "LONGEST_LOOK", 0.3)
    idle_runner(rig)
    with reserve.alone(SELFTEST, IDS[:1]) as why:
        assert "is in use by" in why.text
    assert Store(str(rig.store)).read().waiters == []


def test_in_line_it_is_seen_by_idle_runners_and_in_nobodys_way(rig):
    with reserve.in_line("gpu-selftest-line"):
        (seen,) = Store(str(rig.store)).read().waiters
        assert (seen.who, seen.count) == ("the self-test", 0)
        with reserve.alone(SELFTEST, IDS[1:]) as why:
            assert why is None
            assert create(rig) == 42
        assert create(rig, "GPU_COUNT=2") == 42
    assert Store(str(rig.store)).read().waiters == []


def test_in_line_with_damaged_leases_spoils_no_result(rig):
    with reserve.in_line("gpu-selftest-line"):
        (rig.store / "leases.json").write_text("{")
    with reserve.in_line("gpu-selftest-line"):
        pass
