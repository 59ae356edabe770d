# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Xids that a program tries to have this machine's own kernel say: it crashes under their name."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

from gpu_agent.gpu.vendors.nvidia import xid

KMSG = pathlib.Path("/dev/kmsg")
# Of a domain that no machine has, so that no GPU's own messages are among them.
XID = "NVRM: Xid (PCI:eeee:ee:1f): 79, GPU has fallen off the bus."
FALLEN = "NVRM: The NVIDIA GPU eeee:ee:1f.0\nNVRM: installed in this system has\nNVRM: fallen off"
SOURCE = """
#include <sys/prctl.h>
#include <sys/resource.h>
int main(int count, char **words) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_NAME, words[1]);
    *(volatile int *)0 = 1;
}
"""

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for what crashes"),
    pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="needs a readable /dev/kmsg"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    source = tmp_path_factory.mktemp("crash") / "crash.c"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-o", source.with_suffix(""), source], check=True, timeout=60)
    return source.with_suffix("")


def crash(program, file, name):
    """Run it as that file and under that name; return what the kernel said of it."""
    place = program.parent / file
    shutil.copy(program, place)
    child = subprocess.Popen([place, name])
    assert child.wait(timeout=10) == -11
    mark = f"[{child.pid}]: segfault"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        said = [one.text for one in xid._ring(KMSG) if mark in one.text]
        if said:
            return said[-1]
        time.sleep(0.1)
    pytest.skip("this kernel says nothing of crashes (sysctl debug.exception-trace)")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (f"x\n{XID}", "NVRM:"),
        (f"x\r{XID}", "NVRM: Xid (PCI:"),
        (f"x\n{FALLEN}", "NVRM: GPU eeee:"),
        (XID, "x\nNVRM:"),
    ],
)
def test_no_program_that_crashes_makes_an_xid(program, file, name):
    said = crash(program, file, name)
    assert said.startswith(name)
    assert file in said
    assert [one for one in xid.read().messages if one.pci_address.startswith("eeee:")] == []
