# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What shares a lab goes to one process, and nothing brings up a lab more than it has to."""

import ast
import pathlib

import pytest

from tests import side_by_side

ROOT = pathlib.Path(__file__).parents[2]
LAB_FIXTURES = {"attacker", "site", "under_attack", "walked"}


def wants_the_lab(path: pathlib.Path) -> bool:
    tree = ast.parse(path.read_text())
    defined = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    taken = {argument.arg for node in defined for argument in node.args.args}
    return bool(taken & LAB_FIXTURES - {node.name for node in defined})


@pytest.mark.parametrize(
    ("nodeid", "room"),
    [
        ("tests/attacks/test_storm.py::test_a[x::y]", "selftest and attacks"),
        ("tests/lab/test_selftest.py::test_a", "selftest and attacks"),
        ("tests/lab/test_drain.py::test_a", "lab"),
        ("tests/lab/test_walk.py::test_a", "third lab"),
        ("tests/soak/test_line_storm.py::test_a", "selftest and attacks"),
        ("tests/lab/test_cli.py::test_a", "tests/lab/test_cli.py"),
        ("tests/unit/test_plan.py::test_a", "tests/unit/test_plan.py"),
    ],
)
def test_a_room_is_a_file_or_what_shares_a_lab(nodeid, room):
    assert side_by_side.room(nodeid) == room


def test_labs_begin_before_files_that_need_none():
    names = ["tests/unit/test_plan.py::a", "tests/functional/test_pack.py::a"]
    names += ["tests/functional/test_gpu_xid.py::a", "tests/lab/test_walk.py::a"]
    assert sorted(names, key=side_by_side.turn) == [names[3], names[2], names[0], names[1]]


def test_the_labs_begin_first():
    names = [f"tests/lab/test_{name}.py::a" for name in ("actions", "bare", "selftest", "walk")]
    names += [f"tests/lab/test_{name}.py::a" for name in ("drain", "all_in_one", "restart")]
    order = sorted(names, key=side_by_side.turn)
    assert [*dict.fromkeys(map(side_by_side.room, order))][:4] == [
        "selftest and attacks", "lab", "second lab", "third lab",
    ]  # fmt: skip


def test_files_of_the_lab_are_alone_where_they_do_not_use_it():
    files = sorted((ROOT / "tests/lab").glob("test_*.py"))
    alone = [str(path.relative_to(ROOT)) for path in files if not wants_the_lab(path)]
    assert alone == sorted(side_by_side.ALONE)
