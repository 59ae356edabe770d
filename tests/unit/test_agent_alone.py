# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""All of lib imports on a machine that has neither ops nor anything of the charm."""

import json
import pathlib
import subprocess
import sys

LIB = pathlib.Path(__file__).resolve().parents[2] / "lib"
CHARMS = sorted({path.stem for path in (LIB.parent / "src").glob("*")} - {"__pycache__"})
# Runs as soon as it is imported; its modules are among those below.
RUNS = "gpu_runtime.__main__"
# Refuses what such a machine lacks, then imports each module that is named on stdin.
PROGRAM = """
import importlib, json, sys
missing = set(json.loads(sys.argv[1]))
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"this machine has no {name}", name=name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[2])
wrong = {}
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except ImportError as error:
        wrong[name] = str(error)
print(json.dumps(wrong))
"""


def modules():
    """Every module of lib, but for the workload, whose packages only its own environment has."""
    for path in sorted(LIB.rglob("*.py")):
        parts = path.relative_to(LIB).with_suffix("").parts
        if "workload" not in parts:
            yield ".".join(parts).removesuffix(".__init__")


def imported(names, missing):
    """What each module of those that don't import says."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", PROGRAM, json.dumps(missing), str(LIB)],
        input="\n".join(names),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_module_of_lib_imports_without_ops_and_without_the_charm():
    names = [name for name in modules() if name != RUNS]
    roofs = {name.partition(".")[0] for name in names}
    assert roofs == {"gpu_agent", "gpu_runtime", "gpu_selftest", "gpu_standalone", "machine"}
    assert {"charm", "ci", "options", "parts", "plan"} <= set(CHARMS)
    assert imported(names, ["ops", *CHARMS]) == {}


def test_an_import_of_the_charm_would_be_seen(tmp_path):
    found = imported(["json", "plan.state", "ops.testing"], ["ops", *CHARMS])
    assert set(found) == {"plan.state", "ops.testing"}
