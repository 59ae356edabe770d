# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What several steps need: this machine's GPUs, a policy of them, and a CUDA load."""

import collections.abc
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

from gpu_agent.gpu.vendors import detect
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan, TaskFolders
from gpu_runtime import handover, policy
from gpu_runtime.open_devices import Search
from gpu_runtime.policy import Policy
from prove_gpu.proof import NotRunError

TREE = pathlib.Path(__file__).resolve().parents[2]
# The folders by which the runtime knows a container of a task, and one of another step.
TASKS = TaskFolders(others=("get",))
# In seconds; a handover allows about as much (gpu_runtime.handover).
_MAKING = 8
_LOAD = pathlib.Path(__file__).with_name("cuda_load.py")
# PROC_PID_INIT_INO (Linux include/linux/proc_ns.h): the PID namespace of the whole machine.
_ALL_PROCESSES = "pid:[4026531836]"


def inventory() -> Inventory:
    """Return this machine's GPUs.

    Raises:
        NotRunError: none can be used; the step inventory says why.
    """
    found = detect.detect("nvidia")
    if found.state is not State.READY:
        raise NotRunError(f"the inventory says {found.state.value}: {found.detail}")
    return found


def write_policy(
    folder: pathlib.Path, found: Inventory, *, runtime: str = "/bin/false", wait: int = 30
) -> tuple[pathlib.Path, Policy]:
    """Write a policy for these GPUs, as the agent does; return its path, and it as read."""
    plan = GpuPlan(
        gpus=found.gpus,
        nvidia_runtime=runtime,
        wait_timeout=wait,
        driver=found.driver,
        cuda=found.cuda,
        tasks=TASKS,
    )
    path = folder / "policy.json"
    content = json.loads(install.policy_text(plan))
    content["config_home"] = str(folder)
    path.write_text(json.dumps(content))
    made = policy.read(str(path))
    if made is None:
        raise ValueError("the policy names no GPU")
    return path, made


def sees_all_processes() -> bool:
    """Return whether this is not a PID namespace of its own, where NVML's process ids differ."""
    return os.readlink("/proc/self/ns/pid") == _ALL_PROCESSES


def users(nodes: list[str]) -> dict[int, str]:
    """Return the processes, except this one, that have one of these nodes open, with their names.

    A process with more rights than this one can't be looked at, and is left out, as a handover
    leaves it out.
    """
    search = Search("", nodes)
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(PermissionError, FileNotFoundError):
                if search.has_one_open(int(name)):
                    found[int(name)] = pathlib.Path("/proc", name, "comm").read_text().strip()
    return found


def check_unused(nodes: list[str]) -> None:
    """Check that no container has the GPUs open: a handover may end it, as one without a lease.

    A runc that makes a container has for a moment a place of each node (open(2), O_PATH).

    Raises:
        NotRunError: one has.
    """
    look = handover.Look("", {}, [])

    def contained() -> dict[int, str]:
        return {pid: name for pid, name in users(nodes).items() if look._container(pid)[0]}

    if until(lambda: not contained(), _MAKING, 0.5) is None:
        named = ", ".join(f"{name} (pid {pid})" for pid, name in contained().items())
        raise NotRunError(f"{named} in a container has a GPU open, and this step may end it")


class Load:
    """A process that keeps a GPU busy; see cuda_load.py.

    Attributes:
        pid: its id.
        said: the objects that it has written so far.
    """

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child, self.pid = child, child.pid
        self.said: list[dict[str, float | str]] = []

    def read(self) -> dict[str, float | str]:
        """Return the next object that it writes; empty at its end."""
        line = self._child.stdout.readline() if self._child.stdout else ""
        if not line:
            return {}
        self.said.append(json.loads(line))
        return self.said[-1]

    def kill(self) -> float:
        """Kill it; return the time of that, on the monotonic clock."""
        at = time.monotonic()
        self._child.kill()
        self._child.wait(20)
        return at

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit status."""
        return self._child.wait(seconds)


@contextlib.contextmanager
def load(uuid: str, mib: int, seconds: float) -> collections.abc.Generator[Load]:
    """Load a GPU: allocate so much memory, and multiply and copy for so long.

    Raises:
        NotRunError: CUDA does not start here.
    """
    argv = [sys.executable, "-I", "-S", str(_LOAD), str(mib), str(seconds)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as child:
        one = Load(child)
        try:
            first = one.read()
            if "ready" not in first:
                why = first.get("error", "the load ended without a word")
                raise NotRunError(f"CUDA does not start here: {why}")
            yield one
        finally:
            child.kill()


def until(
    ready: collections.abc.Callable[[], bool], seconds: float, every: float = 0.05
) -> float | None:
    """Return how long it took until `ready`; None if it was not within so many seconds."""
    began = time.monotonic()
    while not ready():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(every)
    return time.monotonic() - began
