# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A further CI system, an option and a check of the self-test: which files know them.

Each is made in a copy of this tree. trial/ci_checks.py runs with the copy that has the CI system.
"""

import pathlib
import shutil

import pytest

from tests.unit import trial_tree as trial

ROOM = pathlib.Path("src/ci/stub")
REGISTRY = pathlib.Path("src/ci/systems.py")
ACTIONS = pathlib.Path("actions.yaml")
OPTIONS = pathlib.Path("src/options/table.py")
CHECKS = pathlib.Path("lib/gpu_selftest/quick")

# Juju reads an action from there, and nothing else declares it.
ACTION = """
stub-hold:
  description: Hold the stub's CI, or let it run.
  params:
    hold:
      type: boolean
      default: true
  additionalProperties: false
"""


@pytest.fixture
def tree(tmp_path):
    trial.make(tmp_path)
    return tmp_path


def pages(*names):
    return {pathlib.Path("docs/reference") / f"{name}.md" for name in names}


def test_a_ci_system_is_a_room_and_a_registration(tree):
    shutil.copytree(trial.TRIAL / "ci/stub", tree / ROOM)
    trial.change(
        tree / REGISTRY,
        "from ci.concourse import concourse\n",
        "from ci.concourse import concourse\nfrom ci.stub import stub\n",
    )
    trial.change(
        tree / REGISTRY,
        "    Room(none.OPTIONS, none.NoCiSystem),\n",
        "    Room(none.OPTIONS, none.NoCiSystem),\n    Room(stub.OPTIONS, stub.Stub),\n",
    )
    with (tree / ACTIONS).open("a") as file:
        file.write(ACTION)
    trial.write_tables(tree)
    changed = trial.touched(tree)
    by_hand = changed - trial.GENERATED
    assert by_hand - trial.rooms(by_hand, ROOM) == {REGISTRY, ACTIONS}
    assert changed & trial.GENERATED == {pathlib.Path("config.yaml"), *pages("options")}
    trial.check(tree, "ci_checks.py")


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
    changed = trial.touched(tree)
    assert changed - trial.GENERATED == {OPTIONS}
    assert changed & trial.GENERATED == {pathlib.Path("config.yaml"), *pages("options")}
    trial.check(tree, "option_checks.py")


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
    changed = trial.touched(tree)
    assert changed - trial.GENERATED == {CHECKS / "uptime.py", CHECKS / "host_checks.py"}
    assert changed & trial.GENERATED == pages("selftest")
    trial.check(tree, "check_checks.py")
