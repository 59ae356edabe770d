# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An option and a check of the self-test: which files know them.

Each is made in a copy of this tree, and runs there. tests/lab/test_trials.py has a vendor, an
engine and a CI system on a unit.
"""

import pathlib
import shutil

import pytest

from tests.unit import trial_tree as trial

OPTIONS = pathlib.Path("src/options/table.py")
CHECKS = pathlib.Path("lib/gpu_selftest/quick")


@pytest.fixture
def tree(tmp_path):
    trial.make(tmp_path)
    return tmp_path


def pages(*names):
    return {pathlib.Path("docs/reference") / f"{name}.md" for name in names}


def test_an_option_is_one_file(tree):
    field, option = "    drain_timeout: int\n", '    Option(\n        "drain-timeout",\n'
    new = option.replace("drain-timeout", "trial-speed")
    new += """\
        default="slow",
        text="Speed of the trial: `slow` or `fast`.",
        group=Group.LIFECYCLE,
        part=Part.WORKER,
        field="trial_speed",
        values=("slow", "fast"),
    ),
"""
    trial.change(tree / OPTIONS, field, f"{field}    trial_speed: str\n")
    trial.change(tree / OPTIONS, option, f"{new}{option}")
    trial.write_tables(tree)
    assert trial.by_hand(tree) == {OPTIONS}
    assert trial.written(tree) == {pathlib.Path("config.yaml"), *pages("options")}
    trial.check(tree, "option_checks.py")


def test_a_check_of_a_ci_system_is_its_room_and_its_registration(tree):
    trial.add(tree, trial.CI_SYSTEM)
    known = trial.by_hand(tree, trial.CI_SYSTEM)
    with (tree / trial.CI_SYSTEM.room / "stub.py").open("a") as room:
        room.write("from gpu_selftest.check import Check, Level\n")
        room.write("CHECK = Check('stub-answers', Level.QUICK, 'the stub answers')\n")
    entry = "    Room(stub.OPTIONS, stub.Stub"
    trial.change(tree / trial.CI / "systems.py", entry, f"{entry}, (stub.CHECK,)")
    trial.write_tables(tree)
    assert trial.by_hand(tree, trial.CI_SYSTEM) == known
    assert "| `stub-answers` | the worker |" in (tree / "docs/reference/selftest.md").read_text()


def test_a_check_of_the_selftest_is_one_room(tree):
    shutil.copy(trial.TRIAL / "check/uptime.py", tree / CHECKS)
    for old, new in {
        "import ci_checks, device_nodes, disk, host_size\n": (
            "import ci_checks, device_nodes, disk, host_size, uptime\n"
        ),
        "    disk.CHECK,\n": "    disk.CHECK,\n    uptime.CHECK,\n",
        "    found.append(room)\n": "    found += [room, uptime.run(look.root)]\n",
    }.items():
        trial.change(tree / CHECKS / "host_checks.py", old, new)
    trial.write_tables(tree)
    assert trial.by_hand(tree) == {CHECKS / "uptime.py", CHECKS / "host_checks.py"}
    assert trial.written(tree) == pages("selftest")
    trial.check(tree, "check_checks.py")
