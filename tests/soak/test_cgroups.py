# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases on a stock kernel with cgroup v2, and with v1, in a virtual machine.

What happens there is in tests/soak/guest/cases.py.
"""

import os
import pathlib
import platform
import re

import pytest

from tests.soak import machine

CASES = pathlib.Path(__file__).parent / "guest" / "cases.py"
RECORDED = machine.ROOT / "tests" / "unit" / "recorded"
# It takes six minutes where nothing else runs, and more than twenty on a crowded machine.
SECONDS = 1800

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)
if platform.machine() != "x86_64":
    pytest.skip("the virtual machine is for x86_64 alone", allow_module_level=True)


class Told:
    """What a virtual machine told: each case's line, and the recording."""

    def __init__(self, cgroups: str, folder: pathlib.Path) -> None:
        self.cgroups = cgroups
        disk = machine.build_disk(folder)
        guest = machine.Guest(disk, folder, cgroups)
        self.cases = guest.cases(SECONDS)
        self.recording = disk.read_out(folder / "recording")


@pytest.fixture(scope="module", params=["v2", "v1"])
def told(request, tmp_path_factory):
    return Told(request.param, tmp_path_factory.mktemp(f"cgroup-{request.param}"))


@pytest.mark.parametrize("name", machine.names(CASES))
def test_case(told, name):
    assert not told.cases[name], told.cases[name]


def without_numbers(root: pathlib.Path) -> dict[str, list[str]]:
    """What a recording says, with the names of processes for their ids, and no other number."""
    named = {
        path.parent.name: re.findall(r"\((.*)\)", path.read_text())[0]
        for path in root.glob("proc/*/stat")
    }
    said: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in ("stat", "uptime", "mountinfo"):
            words = [named.get(word, word) for word in path.read_text().split()]
            place = [named.get(part, part) for part in path.relative_to(root).parts]
            said.setdefault("/".join(place), []).append(" ".join(sorted(words)))
    return {place: sorted(words) for place, words in said.items()}


def test_the_recording_that_unit_tests_read_is_what_the_kernel_says(told):
    recorded = without_numbers(RECORDED / f"cgroups-{told.cgroups}")
    assert without_numbers(told.recording) == recorded
