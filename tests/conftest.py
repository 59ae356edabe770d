# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One lab that is up, for all suites of a run that want one, and an attacker for it."""

import os
import pathlib
import re
import shutil
import signal

import pytest

from gpu_runtime import handover
from tests import once, runs, side_by_side
from tests.attacks import attacker as attacks
from tests.lab import cgroups, concourse, outfit, walk
from tests.lab.session import Lab, Progress
from tests.lab.site import Site

# So that an attack which came through makes no other one seem to.
CLEAN_UP = """
pkill -9 -x mischief
for open in $(find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]' 2>&-); do
  kill -9 $(echo $open | cut -d/ -f3)
done
true
"""

# A parameter that is longer is not shown in its test's name.
LONGEST_NAME = 60
_MADE = pytest.StashKey[pathlib.Path | None]()
_RUN = pytest.StashKey[runs.Run | None]()


def reason_to_skip() -> str:
    """Why no machine can run here, or nothing."""
    if os.geteuid() != 0:
        return "machines need root"
    for program in ("systemd-nspawn", "nsenter", "unshare", "ip", "unzip"):
        if not shutil.which(program):
            return f"{program} is not installed: scripts/setup lab"
    return ""


def pytest_configure(config):
    """What killed runs left goes; what takes seconds to make is made once for all processes."""
    config.stash[_RUN] = None if config.option.collectonly else runs.begin()
    if config.stash[_RUN]:
        runs.use_memory()
    config.stash[_MADE] = once.begin()
    if made := config.stash[_MADE]:
        runs.note("folder", str(made))


def pytest_unconfigure(config):
    once.end(config.stash.get(_MADE, None))
    if run := config.stash.get(_RUN, None):
        run.end()


@pytest.fixture(scope="session", autouse=True)
def own_cgroups(tmp_path_factory):
    """Side by side, containers of the same name are below other cgroups.

    Those and the folder of temporary files are also what is left of a run that is killed.
    """
    if os.geteuid() == 0 and cgroups.writable():
        runs.note("folder", str(tmp_path_factory.getbasetemp()))
        with cgroups.entered(runs.cgroup_name()) as made:
            yield made
    else:
        yield []


@pytest.fixture(scope="session", autouse=True)
def no_look_ends_a_container_of_another_process():
    """Have looks in this process pass over the containers of labs and tests beside it.

    A device that stands for a GPU here, such as /dev/null, is open in many of them. They would end
    as one ends that was sent a GPU's descriptor.
    """
    of_machine = handover.Look._pids
    own = re.compile(rf"/gpuci-[^/]+-{os.getpid()}/")

    def of_this_process(look):
        return [
            pid
            for pid in of_machine(look)
            if look._root or not (group := look._container(pid)[0]) or own.search(group)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handover.Look, "_pids", of_this_process)
        yield


@pytest.fixture(autouse=True)
def no_signal_ends_the_tests_to_come():
    """A test that leaves broken pipes deadly, or an alarm to come, would end all its process."""
    yield
    pipes, seconds = signal.signal(signal.SIGPIPE, signal.SIG_IGN), signal.alarm(0)
    assert (pipes, seconds) == (signal.SIG_IGN, 0)


@pytest.fixture(scope="session")
def machines_work() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def walked(machines_work, own_cgroups, tmp_path_factory: pytest.TempPathFactory):
    """A lab after `lab up`: web, worker with two GPUs, postgresql. Each test leaves it so."""
    cgroups.weigh(own_cgroups, side_by_side.PRECEDENCE)
    say = Progress()
    lab = Lab(tmp_path_factory.mktemp("walk"), say)
    try:
        walk.up(lab, say)
        yield lab
    finally:
        lab.controller.destroy()


@pytest.fixture(scope="session")
def site(walked: Lab) -> Site:
    """The same lab in the words of its tests."""
    return Site(walked)


@pytest.fixture(scope="session")
def under_attack(site, tmp_path_factory):
    """The lab, with the attackers' program in the root that tasks have; as before afterwards.

    Web would let no third task in while two run; where tasks get no GPU unasked, it does.
    """
    program = attacks.compile_program(tmp_path_factory.mktemp("mischief"))
    site.machine().write(f"{outfit.ROOTFS}/bin/mischief", program, 0o755)
    evidence = outfit.ROOTFS + attacks.EVIDENCE
    site.sh(f"mkdir -p {evidence}; chmod 1777 {evidence}")
    site.configure(gpus_per_task="0")
    site.tags()
    # What is of operators there, such as a cordon's line, is of no container.
    site.sh("truncate -c -s 0 /var/log/gpu-ci/oci.log")
    yield site
    site.configure(reset=("gpus-per-task",))
    site.tags()


@pytest.fixture
def attacker(under_attack):
    """An attacker, whose builds end with the test; then the worker serves as before."""
    under_attack.sh(f"rm -rf {outfit.ROOTFS}{attacks.EVIDENCE}/*")
    attacker = attacks.Attacker(under_attack)
    yield attacker
    attacker.honest.end()
    attacker.abort()
    try:
        attacks.assert_unharmed(attacker)
    finally:
        under_attack.sh(CLEAN_UP)


def pytest_make_parametrize_id(val, argname):
    """A long text, such as a key made for this run, is no name: processes would differ in it."""
    return argname if isinstance(val, str) and len(val) > LONGEST_NAME else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n`: what shares a lab stays in one process."""
    return side_by_side.Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Begin with what takes longest, if several processes run the tests (`-n`)."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: side_by_side.turn(item.nodeid))


def pytest_report_header() -> list[str]:
    """Which Concourse and NVIDIA runtime the lab's tests run with."""
    kinds = {True: "the real one", False: "a stand-in"}
    runtime = bool(os.environ.get("GPUCI_NVIDIA_RUNTIME"))
    return [
        f"Concourse in the lab: {kinds[concourse.is_real()]}",
        f"nvidia-container-runtime in the lab: {kinds[runtime]}",
    ]
