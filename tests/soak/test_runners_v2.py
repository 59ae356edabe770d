# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of Gitea on a stock kernel with systemd and cgroup v2, in a virtual machine.

What happens there is in tests/soak/guest/runners.py. The server and its runner are stand-ins.
"""

import os
import pathlib
import platform

import pytest

from tests.functional import engine_machine
from tests.soak import machine, people_disk, runners_disk, systemd_disk

CASES = pathlib.Path(__file__).parent / "guest" / "runners.py"
# It takes four minutes where nothing else runs.
SECONDS = 1200

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)
if platform.machine() != "x86_64":
    pytest.skip("the virtual machine is for x86_64 alone", allow_module_level=True)
if not engine_machine.HAS_ENGINES:
    pytest.skip("there is no podman and no dockerd", allow_module_level=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runners")
    disk = runners_disk.build(folder)
    guest = machine.Guest(
        disk, folder, "v2",
        modules=people_disk.WITH, first=systemd_disk.FIRST, memory=2048, more=systemd_disk.WORDS,
    )  # fmt: skip
    return guest.cases(SECONDS)


@pytest.mark.parametrize("name", machine.names(CASES))
def test_case(told, name):
    assert not told[name], told[name]
