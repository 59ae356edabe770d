# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What real runc makes of its arguments, and whether the front and the back end make the same.

runc tells which bundle it read by what it finds wrong there. Nothing is ever started.
"""

import collections
import json
import os
import random
import shutil
import subprocess

import pytest

from gpu_runtime import runc_arguments as arguments
from tests.unit import fronts
from tests.unit.fronts import BACK_END, HANDED_ON, Fronts

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runc needs root here"),
    pytest.mark.skipif(not shutil.which("runc"), reason="runc is not installed"),
]
TASK = [{"destination": "/tmp/build/e55deab7", "type": "bind"}]
GET = [{"destination": "/tmp/build/get", "type": "bind"}]
CASES = 400
HERE = ["--root", "state"]


@pytest.fixture
def front(tmp_path):
    made = Fronts(tmp_path)
    for name, mounts in (("task", TASK), ("get", GET)):
        config = {
            "ociVersion": "1.0.2",
            "process": {"args": ["x"], "cwd": "/"},
            "root": {"path": "."},
            "mounts": mounts,
            # Names the bundle in the words with which runc refuses it.
            "linux": {"namespaces": [{"type": f"no-{name}"}]},
        }
        made.bundle(name, json.dumps(config).encode())
        (tmp_path / name / "state").mkdir()
    return made


def bundle_by_runc(place, words):
    """Which of the bundles runc read; empty if it came to none."""
    done = subprocess.run(
        ["runc", *HERE, *words],
        cwd=place,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        errors="replace",
        timeout=60,
    )
    found = [name for name in ("task", "get") if f"no-{name}" in done.stderr]
    return found[0] if found else ""


def test_the_bundle_that_runc_reads_is_the_one_that_is_looked_at(front):
    bundles = [str(front.folder / name) for name in ("task", "get")] + ["/nowhere"]
    cases, read = [], collections.Counter()
    for number in range(CASES):
        chance = random.Random(number)
        words = fronts.words(chance, bundles)
        if any(word.lstrip("-").startswith(("root", "log", "criu")) for word in words):
            continue  # they would have it write elsewhere
        cases.append((chance.choice(["task", "get"]), words))
    answers = front.run(cases)
    for (place, words), answer in zip(cases, answers, strict=True):
        name = bundle_by_runc(front.folder / place, words)
        read[name] += 1
        if not name:
            continue
        call = arguments.parse(words)
        assert call.command in ("create", "run", "restore"), words
        assert call.container, words
        looked_at = call.options.get("bundle") or str(front.folder / place)
        assert looked_at == str(front.folder / name), words
        assert answer == BACK_END or name == "get", words
    assert min(read["task"], read["get"]) > CASES / 20, read
    assert {*answers} == {BACK_END, HANDED_ON}
