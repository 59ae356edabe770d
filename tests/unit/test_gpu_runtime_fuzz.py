# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Damaged and hostile specs and arguments: a short form here, the long one in `make soak`."""

import collections
import os
import pathlib
import random
import tempfile

import pytest

from gpu_runtime import container_spec as spec
from gpu_runtime import environment
from gpu_runtime import json_files as files
from gpu_runtime import lease_scheduler as leases
from gpu_runtime import runc_arguments as arguments
from tests.unit import fronts, mutations
from tests.unit.fronts import BACK_END, HANDED_ON, Fronts
from tests.unit.fuzzing import TEXT_OF_A_TASK, Fuzzer, parsed
from tests.unit.grants import TASKS

SCALE = 20 if "GPUCI_SOAK" in os.environ else 1
BATCH = 2000


@pytest.fixture
def folder():
    """In memory where there is such a place: each case replaces files."""
    memory = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield pathlib.Path(name)


@pytest.fixture
def fuzzer(folder, monkeypatch):
    return Fuzzer(folder, monkeypatch)


@pytest.fixture
def front(folder):
    return Fronts(folder)


def often(case, count):
    """Run cases and tell which answers came often: were there but one, it would prove little."""
    answers = collections.Counter()
    number = 0
    try:
        for number in range(count):
            answers[case(number)] += 1
    except BaseException:
        print(f"case {number}")
        raise
    return {answer for answer, times in answers.items() if times > count / 20}


def batches(count):
    return [range(first, min(first + BATCH, count)) for first in range(0, count, BATCH)]


def test_creates(fuzzer):
    expected = {"untouched", "refused", "granted", "denied"}
    assert often(fuzzer.create, 2500 * SCALE) == expected


def test_execs(fuzzer):
    assert often(fuzzer.exec, 1000 * SCALE) == {"told", "refused"}


@pytest.fixture
def bundles(front):
    task = front.bundle("task", b'{"mounts":[{"destination":"/tmp/build/e55deab7"}]}')
    get = front.bundle("get", b'{"mounts":[{"destination":"/tmp/build/get"}]}')
    return [str(task), str(get), "/nowhere"]


def test_the_front_hands_on_nothing_that_concerns_a_task(front, bundles):
    """The back end reads the arguments; what real runc makes of them is a functional test's."""
    found = collections.Counter()
    for numbers in batches(700 * SCALE):
        calls = []
        for number in numbers:
            chance = random.Random(number)
            calls.append((chance.choice(["task", "get"]), fronts.words(chance, bundles)))
        for number, answer, (place, words) in zip(numbers, front.run(calls), calls, strict=True):
            call = arguments.parse(words)
            concerned = (call.options.get("bundle") or bundles[place == "get"]) != bundles[1]
            if call.command == "exec":
                concerned = call.container == "known"
            elif len(call.words) > 1:
                concerned = False  # runc refuses it: a start takes an id and nothing more
            if call.container and call.command and concerned:
                assert answer == BACK_END, f"case {number}: {words}, in {place}"
            found[answer] += 1
    assert min(found[BACK_END], found[HANDED_ON]) > 70 * SCALE


def test_the_front_hands_on_what_concerns_none(front, bundles):
    calls, expected = [], []
    for number in range(200 * SCALE):
        chance = random.Random(number)
        bundle, name = chance.choice(bundles[:2]), chance.choice(["known", "other"])
        words = fronts.words_of_containerd(chance, bundle, name)
        concerned = name == "known" if "exec" in words else bundle == bundles[0]
        calls.append((chance.choice(["task", "get"]), words))
        expected.append(BACK_END if concerned else HANDED_ON)
    assert front.run(calls) == expected
    assert {*expected} == {BACK_END, HANDED_ON}


def test_the_front_sees_every_task(front):
    """containerd and Concourse write by Go's encoding/json: it escapes nothing of such a path."""
    seen = collections.Counter()
    for numbers in batches(300 * SCALE):
        contents = [mutations.spec(random.Random(number)) for number in numbers]
        calls = []
        for place, content in enumerate(contents):
            (front.folder / f"b{place}").mkdir(exist_ok=True)
            (front.folder / f"b{place}" / "config.json").write_bytes(content)
            calls.append((f"b{place}", ["create", "ID"]))
        for number, answer, content in zip(numbers, front.run(calls), contents, strict=True):
            config = parsed(content)
            if isinstance(config, dict) and spec.kind(config, TASKS) != spec.OTHER:
                escaped = rb"\/" in content or rb"\u00" in content
                assert answer == BACK_END or escaped, f"case {number} is a task"
                seen["task"] += 1
            # grep must see it among bytes that are no text, too.
            assert answer == BACK_END or not TEXT_OF_A_TASK.search(content), f"case {number}"
            seen[answer] += 1
    assert min(seen["task"], seen[HANDED_ON]) > 50 * SCALE


def more_than_asked(table, wish, usable, host, *, exclusive):
    return usable


def in_place(path, value, *, like=""):
    pathlib.Path(path).unlink(missing_ok=True)
    pathlib.Path(path).write_text(files.dumps(value))


FAULTS = {
    "doors": (environment, "DOORS", frozenset()),
    "prefix": (environment, "DOOR_PREFIX", "none"),
    "narrowing": (environment.Variables, "check_narrowing", lambda *_: None),
    "loader": (spec, "LOADER", ()),
    "annotations": (spec, "CDI_PREFIX", "none"),
    "mounts": (spec, "_DEVICE_MOUNTS", ("/none",)),
    "kinds": (spec, "kind", lambda config, tasks: spec.TASK),
    "blind": (spec, "kind", lambda config, tasks: spec.OTHER),
    "nodes": (spec, "with_nodes", lambda linux, nodes: linux),
    "devices": (leases, "allot", more_than_asked),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fuzzer, monkeypatch, fault):
    """What can't fail proves nothing."""
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(AssertionError):
        often(fuzzer.create, 1000)


def test_a_lost_owner_is_found(fuzzer, monkeypatch):
    monkeypatch.setattr("gpu_runtime.task_call.replace", in_place)
    with pytest.raises(AssertionError):
        often(fuzzer.create, 1000)
