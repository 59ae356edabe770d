# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-leases and gpu-reclaim over real containers: runc, control groups, processes that resist."""

import json
import os
import pathlib
import shutil
import subprocess
import time
import uuid

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import lease_report as leases
from gpu_agent.model.inventory import Gpu
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from gpu_selftest import gpu_reservation as reserve
from tests.functional.lease_site import until

MISSING = [name for name in ("runc", "busybox") if not shutil.which(name)]
CARDS = tuple(
    Gpu(n, f"GPU-{n}", "nvidia", "NVIDIA A100-SXM4-80GB", 81920, f"0000:0{n}:00.0", n)
    for n in (0, 1)
)

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


class Container:
    """A container as Concourse has it: an init that does nothing, steps that are exec'd."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.id = str(uuid.uuid4())
        self.bundle = folder / self.id
        rootfs = self.bundle / "rootfs"
        for name in ("bin", "proc", "dev", "sys"):
            (rootfs / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "", rootfs / "bin/busybox")
        for name in ("sh", "sleep", "setsid", "touch"):
            (rootfs / "bin" / name).symlink_to("busybox")
        self.runc("spec", "--bundle", str(self.bundle))
        path = self.bundle / "config.json"
        spec = json.loads(path.read_text())
        spec["process"] |= {"terminal": False, "args": ["sleep", "1000"]}
        spec["root"]["readonly"] = False
        spec["linux"]["cgroupsPath"] = f"/{self.id}"
        path.write_text(json.dumps(spec))
        pid_file = str(self.bundle / "init.pid")
        self.runc("run", "-d", "--bundle", str(self.bundle), "--pid-file", pid_file, self.id)

    def runc(self, *words: str) -> None:
        subprocess.run(
            ["runc", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )

    def step(self, line: str, exec_id: str = "task") -> int:
        """Start a process in it; its id."""
        pid_file = self.bundle / f"{exec_id}.pid"
        self.runc("exec", "-d", "--pid-file", str(pid_file), self.id, "sh", "-c", line)
        return int(pid_file.read_text())

    def wait_for(self, name: str) -> None:
        for _ in range(100):
            if (self.bundle / "rootfs" / name).exists():
                return
            time.sleep(0.05)
        raise AssertionError(f"no {name} in the container")

    @property
    def init(self) -> int:
        return int((self.bundle / "init.pid").read_text())

    def processes(self) -> list[int]:
        """All its processes."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cgroup"):
            try:
                # Another test's process and its control group may have any name.
                text = path.read_text(errors="replace")
                stat = (path.parent / "stat").read_text(errors="replace")
                state = stat.rpartition(")")[2].split()[0]
            except OSError:
                continue
            if self.id in text and state not in "ZX":
                found.append(int(path.parent.name))
        return found


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A store and a policy of two GPUs."""
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG"):
        monkeypatch.setattr(wrapper, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    wrapper.POLICY.write_text(
        install.policy_text(GpuPlan(CARDS, "/usr/bin/nvidia-container-runtime"))
    )
    return Store(str(wrapper.STORE))


@pytest.fixture
def container(tmp_path):
    made = Container(tmp_path)
    yield made
    made.runc("delete", "--force", made.id)


def hold(store: Store, container: Container, *gpus: str, calls=()) -> None:
    host = Host()
    bundle = str(container.bundle)
    holder = Holder(bundle, list(gpus), list(calls), exclusive=True, since=host.now())
    holder.execs = True
    host.note_groups(container.id, holder)
    assert holder.cgroup.endswith(container.id)
    with store as table:
        table.holders[container.id] = holder


def test_a_running_step_is_shown_and_its_gpu_left_to_it(worker, container):
    step = container.step("sleep 500")
    hold(worker, container, "GPU-1")
    assert leases.report()["gpu-1"].startswith(
        f"leased, A100-SXM4-80GB, GPU-1\n  held by container {container.id} (CI step)\n"
    )
    assert leases.report()["gpu-1"].endswith("runs: task")
    with pytest.raises(leases.LeaseError, match=rf"in use by container {container.id} \(task"):
        leases.reclaim("1", "hangs", force=False)
    assert {container.init, step} <= set(container.processes())


def test_force_ends_the_whole_container(worker, container):
    container.step("trap '' TERM HUP INT; setsid sleep 500 & touch /ready; sleep 500")
    container.step("sleep 500", str(uuid.uuid4()))
    container.wait_for("ready")
    hold(worker, container, "GPU-0", "GPU-1")
    assert len(container.processes()) == 4
    assert leases.reclaim("gpu-1", "hangs", force=True) == {
        "gpu": "GPU-1",
        "was": f"held by container {container.id}",
        "state": "free for the next request",
    }
    until(lambda: not container.processes(), 30)
    assert worker.read().holders == {}
    assert leases.report()["free"] == "2 of 2"
    assert json.loads(wrapper.LOG.read_text())["reason"] == "GPU-0, GPU-1: hangs"


def test_what_outlived_its_step_is_killed_without_force(worker, container):
    step = container.step("setsid sleep 500 & touch /ready")
    container.wait_for("ready")
    hold(worker, container, "GPU-1")
    for _ in range(100):
        if not leases.report()["gpu-1"].startswith("leased"):
            break
        time.sleep(0.05)
    assert leases.report()["gpu-1"].startswith("free, A100-SXM4-80GB, GPU-1\n  held by container ")
    left = set(container.processes()) - {container.init}
    assert left
    assert step not in left
    assert leases.reclaim("1", "clean", force=False)["was"] == f"held by container {container.id}"
    until(lambda: not container.processes(), 2)


def test_force_ends_a_call_that_would_have_started_more(worker, container):
    call = subprocess.Popen(["sleep", "500"])
    fields = pathlib.Path(f"/proc/{call.pid}/stat").read_text().rpartition(")")[2].split()
    hold(worker, container, "GPU-1", calls=[(call.pid, int(fields[19]))])
    with pytest.raises(leases.LeaseError, match=r"\(starting, 0 s\)"):
        leases.reclaim("1", "hangs", force=False)
    leases.reclaim("1", "hangs", force=True)
    assert call.wait(10) == -9
    assert worker.read().holders == {}


def test_a_call_whose_number_another_process_has_is_left_alone(worker, container):
    stranger = subprocess.Popen(["sleep", "500"])
    hold(worker, container, "GPU-1", calls=[(stranger.pid, 1)])
    leases.reclaim("1", "hangs", force=True)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(10)


def test_what_a_self_test_left_running_keeps_its_lease_until_it_ends(worker, container):
    step = container.step("sleep 500")
    with reserve.alone(container.id, ["GPU-1"]) as why:
        assert why is None
        with worker as table:
            table.holders[container.id].bundle = str(container.bundle)
            table.holders[container.id].execs = True
    assert leases.report()["gpu-1"].startswith(
        f"leased, A100-SXM4-80GB, GPU-1\n  held by container {container.id} (CI step)\n"
    )
    with reserve.alone("gpu-selftest-2", ["GPU-1"]) as why:
        assert why.text == f"GPU 1 is in use by container {container.id} (task, 0 s)"
    subprocess.run(["kill", "-9", str(step)], check=True)
    # On a busy machine a killed process takes some seconds to end.
    until(lambda: step not in container.processes(), 60)
    with reserve.alone("gpu-selftest-3", ["GPU-1"]) as why:
        assert why is None
        assert list(worker.read().holders) == ["gpu-selftest-3"]


def test_what_a_finished_self_test_left_is_killed(worker, container):
    container.step("setsid sleep 500 & touch /ready")
    container.wait_for("ready")
    with reserve.alone(container.id, ["GPU-0"]) as why:
        assert why is None
        with worker as table:
            table.holders[container.id].bundle = str(container.bundle)
            table.holders[container.id].execs = True
        assert set(container.processes()) > {container.init}
    until(lambda: not container.processes(), 2)
    assert worker.read().holders == {}
