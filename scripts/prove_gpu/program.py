# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the steps one after another, each in a process with a deadline; write what they found."""

import collections.abc
import contextlib
import dataclasses
import datetime
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import traceback
import typing

from gpu_agent import paths
from machine import process
from prove_gpu import page
from prove_gpu.proof import NotRunError, Proof

# In seconds, for all steps; what reads the results has what is left of ten minutes.
_TOTAL = 570
# How long a killed process may take to end, in seconds. A call into a driver may never return.
_ENDING = 5
_PROGRAM = pathlib.Path(__file__).with_name("__main__.py")


class Step(typing.NamedTuple):
    """One proof.

    Attributes:
        name: its name.
        function: a function below prove_gpu.steps, as `module.function`.
        seconds: its deadline.
        proves: what is true if it passes.
    """

    name: str
    function: str
    seconds: int
    proves: str


# The first step decides whether there is a driver that answers. The longest step is the last one,
# since it can do with the time that is left.
STEPS = (
    Step(
        *("machine", "machine.answers", 40),
        "the driver answers NVML, and nvidia-smi if it is there",
    ),
    Step(
        *("inventory", "inventory.gpus", 60),
        "the inventory of GPUs has what nvidia-smi, /proc and /sys say, field by field",
    ),
    Step(
        *("driver", "inventory.driver", 40),
        "the versions of the loaded driver and of its library are read as they are",
    ),
    Step(
        *("device-nodes", "nodes.nodes", 30),
        "the GPUs' device nodes are found, and told apart, by name and by number",
    ),
    Step(
        *("image-requirements", "requirements.requirements", 20),
        "NVIDIA_REQUIRE_CUDA is judged right against this driver and these GPUs",
    ),
    Step(
        *("health", "health.health", 60),
        "health and figures of each GPU are those that nvidia-smi reports",
    ),
    Step(
        *("events", "health.events", 40),
        "NVML's events can be registered, waited for and closed, again and again",
    ),
    Step(
        *("driver-probe", "health.probe", 60),
        "the child that asks the driver sends the figures of every GPU, twice",
    ),
    Step(
        *("self-test-quick", "selftest.quick", 60),
        "the self-test's quick checks of machine and GPUs run, and none fails",
    ),
    Step(
        *("open-descriptors", "descriptors.descriptors", 40),
        "a process with the GPU open is found, also by a descriptor that it was sent",
    ),
    Step(
        *("cuda-process", "descriptors.cuda", 60),
        "a CUDA program is found while it runs, and not after its end",
    ),
    Step(
        *("leases", "leases.leases", 90),
        "a lease is granted, a second request waits for it, and gets the GPU after its end",
    ),
    Step(
        *("runtime", "runtime.calls", 60),
        "calls of the GPU runtime with a stand-in for runc grant, deny and refuse as they should",
    ),
    Step(
        *("container", "runtime.container", 90),
        "in a container of the real runc the granted GPU opens, and without a grant none does",
    ),
    Step(
        *("usage", "usage.usage", 75),
        "figures, clock reasons and the usage record show a known load, and the load's owner",
    ),
    Step(
        *("killed-process", "usage.killed", 60),
        "the memory of a killed process is free again before its GPU counts as not free",
    ),
    Step(
        *("self-test-compute", "selftest.compute", 400),
        "the self-test's level compute runs with this machine's PyTorch, and no check fails",
    ),
)


@dataclasses.dataclass
class Ran:
    """A step and what it found.

    Attributes:
        step: the step.
        outcome: `passed`, `failed` or `not-run`.
        reason: why it failed or did not run; empty if its checks say so.
        seconds: how long it took.
        rows: its rows by kind: `check`, `figure`, `left_out`.
    """

    step: Step
    outcome: str
    reason: str
    seconds: float
    rows: dict[str, list[dict[str, typing.Any]]]


def main(arguments: list[str]) -> int:
    """Run the steps of these names after the first one, by default all.

    With `--step NAME FILE` one of them runs in this process.
    """
    if arguments[:1] == ["--step"]:
        return _work(arguments[1], pathlib.Path(arguments[2]))
    if why := _obstacle(arguments):
        print(f"prove-gpu: {why}", file=sys.stderr)
        return 2
    folder = _folder()
    process.adopt_orphans()
    began, started = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
    total = float(os.environ.get("PROVE_SECONDS", _TOTAL))
    steps = [STEPS[0], *(one for one in STEPS[1:] if not arguments or one.name in arguments)]
    print(f"prove-gpu: {len(steps)} steps, at most {total:g} s; results in {folder}", flush=True)
    found: list[Ran] = []
    for step in steps:
        ran = _run(step, folder, found, began + total)
        found.append(ran)
        said = ran.reason or _failures(ran) or f"{len(ran.rows['check'])} checks"
        print(f"{ran.outcome:8} {step.name:20} {ran.seconds:6.1f} s  {said}", flush=True)
    about = _about(found, started, time.monotonic() - began)
    whole = {**about, "steps": [_plain(ran) for ran in found]}
    (folder / "results.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (folder / "real-gpu.md").write_text(page.render(whole), encoding="utf-8")
    print(f"prove-gpu: {about['outcome']}; {folder}/real-gpu.md is the page", flush=True)
    return 0 if about["outcome"] == "passed" else 1


def _obstacle(names: list[str]) -> str:
    """Return why nothing can be proven here; empty if something can."""
    known = [step.name for step in STEPS]
    if unknown := {*names} - {*known}:
        return f"there is no step {', '.join(sorted(unknown))}; the steps are {', '.join(known)}"
    if os.geteuid() != 0:
        return "run it as root: it reads other processes' descriptors"
    nodes = [*pathlib.Path("/dev").glob("nvidia[0-9]*"), *pathlib.Path("/dev").glob("nvidiactl")]
    if not nodes and not pathlib.Path("/proc/driver/nvidia/version").exists():
        return "this machine has no NVIDIA driver: no /proc/driver/nvidia and no /dev/nvidia*"
    if paths.POLICY.exists():
        return (
            f"this machine is a worker ({paths.POLICY} exists), and a proof may end its jobs: "
            "run it on another machine"
        )
    return ""


def _folder() -> pathlib.Path:
    """Return the folder for the results, made.

    OUT names the folder that comes back from a machine that is lent for one command.
    """
    out = os.environ.get("OUT", "")
    name = f"prove-gpu-{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%SZ}"
    place = pathlib.Path(out, "prove-gpu") if out and pathlib.Path(out).is_dir() else name
    folder = pathlib.Path(os.environ.get("PROVE_OUT") or place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(step: Step, folder: pathlib.Path, before: list[Ran], end: float) -> Ran:
    """Run a step in a process of its own, and end all that it leaves."""
    if before and before[0].outcome != "passed":
        return Ran(step, "not-run", f"{before[0].step.name} did not pass", 0.0, _rows([]))
    most = float(os.environ.get("PROVE_STEP_SECONDS", step.seconds))
    began = time.monotonic()
    allowed = min(most, end - began)
    if allowed < 1:
        return Ran(step, "not-run", "the time for all steps is used up", 0.0, _rows([]))
    rows = folder / "step.jsonl"
    rows.unlink(missing_ok=True)
    # Without site-packages: a package of this machine must not take the place of ours.
    argv = [sys.executable, "-B", "-S", str(_PROGRAM), "--step", step.name, str(rows)]
    environment = {**os.environ, "PROVE_STEP_ENDS": str(time.monotonic() + allowed)}
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"\n== {step.name}\n")
        log.flush()
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(allowed)
        status = child.poll()
        left = _end_all()
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    rows.unlink(missing_ok=True)
    outcome, reason, kept = _judged(lines, status, allowed, most)
    if left:
        outcome, reason = "failed", f"{reason}; {left} can't be killed".removeprefix("; ")
    return Ran(step, outcome, reason, time.monotonic() - began, kept)


def _judged(
    lines: list[str], status: int | None, allowed: float, most: float
) -> tuple[str, str, dict[str, list[dict[str, typing.Any]]]]:
    """Return how a step ended, why, and its rows by kind."""
    found = [json.loads(line) for line in lines]
    kept = _rows(found)
    ends = [row["end"] for row in found if "end" in row]
    if status is None and allowed < most:
        return "not-run", f"the time for all steps was used up after {allowed:.0f} s of it", kept
    if status is None:
        return "failed", f"it did not end within {allowed:g} s", kept
    if not ends:
        return "failed", f"it ended with exit status {status} and no outcome; see log.txt", kept
    return ends[0]["outcome"], ends[0]["reason"], kept


def _rows(found: list[dict[str, typing.Any]]) -> dict[str, list[dict[str, typing.Any]]]:
    kinds = ("check", "figure", "left_out")
    return {kind: [row[kind] for row in found if kind in row] for kind in kinds}


def _failures(ran: Ran) -> str:
    failed = [
        f"{row['name']}: expected {row['expected']}, found {row['found']}"
        for row in ran.rows["check"]
        if not row["ok"]
    ]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{failed[0]}{more}" if failed else ""


def _end_all() -> str:
    """Kill every process below this one; return those that do not end, as a text."""
    end = time.monotonic() + _ENDING
    while (left := _below()) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.02)
    return ", ".join(f"pid {pid}" for pid in sorted(left))


def _below() -> set[int]:
    """Return the processes that this one has started, also through others."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                fields = pathlib.Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                parents[int(name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _work(name: str, path: pathlib.Path) -> int:
    """Run one step in this process."""
    (step,) = (one for one in STEPS if one.name == name)
    proof = Proof(path)
    module, _, function = step.function.partition(".")
    try:
        prove: collections.abc.Callable[[Proof], None] = getattr(
            importlib.import_module(f"prove_gpu.steps.{module}"), function
        )
        prove(proof)
    except NotRunError as why:
        proof.end("failed" if proof.failures else "not-run", str(why))
    except Exception as error:  # noqa: BLE001 - whatever it is, the step has failed by it
        traceback.print_exc()
        proof.end("failed", f"{type(error).__name__}: {error}")
    else:
        nothing = "" if proof.checks else "it compared nothing"
        proof.end("failed" if proof.failures or nothing else "passed", nothing)
    return 0


def _about(found: list[Ran], started: datetime.datetime, seconds: float) -> dict[str, typing.Any]:
    outcomes = {ran.outcome for ran in found}
    outcome = "failed" if "failed" in outcomes else "passed"
    if "passed" not in outcomes:
        outcome = "failed"
    git = shutil.which("git")
    tree = str(_PROGRAM.parents[2])
    commit = ""
    if git:
        with contextlib.suppress(process.CommandError):
            commit = process.run([git, "-C", tree, "rev-parse", "HEAD"], timeout=10).stdout.strip()
    release = pathlib.Path("/etc/os-release")
    told = release.read_text(encoding="utf-8") if release.exists() else ""
    system = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    return {
        "schema": 1,
        "outcome": outcome,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "commit": commit,
        "system": system.get("PRETTY_NAME", "").strip('"'),
        "kernel": os.uname().release,
        "architecture": os.uname().machine,
        "python": sys.version.split()[0],
    }


def _plain(ran: Ran) -> dict[str, typing.Any]:
    return {
        "name": ran.step.name,
        "proves": ran.step.proves,
        "outcome": ran.outcome,
        "reason": ran.reason,
        "seconds": round(ran.seconds, 1),
        "checks": ran.rows["check"],
        "figures": ran.rows["figure"],
        "left_out": ran.rows["left_out"],
    }
