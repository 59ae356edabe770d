# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command gpu-selftest with checks that hang, in a process of its own, which that ends."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What hangs is a question to a driver: a function of the room gpu reads a file of the kernel's,
# here a pipe to which nobody ever writes.
HANGING = """
import json, os, pathlib, sys
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_selftest import __main__ as command, results, settings, watchdog
from gpu_selftest.check import Level

def hang(kept, request, progress, reached):
    if {crash}:
        raise OSError("No space left on device")
    for level in {levels}:
        reached(Level(level))
    progress("Asking NVML")
    while True:
        try:
            {wait}
        except KeyboardInterrupt:
            if {deaf}:
                continue
            raise

def keep(kept, report):
    if {full}:
        raise OSError("No space left on device")
    print(json.dumps(results.plain(report)), flush=True)

folder = pathlib.Path(sys.argv[1])
os.mkfifo(folder / "pipe")
kept = folder / "selftest.json"
settings.write(settings.Settings("worker/0", runc="/bin/true"), kept)
place = command.Place(kept, folder / "lock", folder / "home", lambda: 0, hang, keep)
watchdog.LIMITS.update(dict.fromkeys(watchdog.LIMITS, {limit}))
command.guard()
sys.exit(command.main(["--level", "{level}"], place))
"""
IN_THE_DRIVER = 'kernel.text(folder / "pipe")'
ELSEWHERE = '(folder / "pipe").read_text()'


def hanging(folder: pathlib.Path, limit: float, **more) -> subprocess.Popen[str]:
    """A self-test that hangs; see HANGING for what else can be said."""
    values = {
        "deaf": False,
        "level": "quick",
        "levels": (),
        "crash": False,
        "full": False,
        "wait": IN_THE_DRIVER,
    }
    code = HANGING.format(limit=limit, **values | more)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lib'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def the_result(out):
    """The report's head, and the one result in it."""
    kept = json.loads(out.splitlines()[0])
    (result,) = kept["results"]
    assert (kept["subject"], kept["level"]) == ("", "quick")
    assert (result["check"], result["gpu"]) == ("driver", "")
    assert kept["outcome"] == {"failed": "failed", "not-run": "incomplete"}[result["outcome"]]
    assert result["text"].endswith("; last step: Asking NVML")
    return result
