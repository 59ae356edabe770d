# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A hundred jobs of Gitea, gpu-run, podman and Docker on two GPUs, while programs are killed.

Run by `make soak`. With GPUCI_GITEA and GPUCI_GITEA_RUNNER the server and its runner are real.
"""

import os
import random
import shlex
import time

import pytest

from ci.runners.settings import Limits
from tests.functional import engine_machine, runners_engines, selftest_machine
from tests.functional.runners_engines import BOX
from tests.functional.runners_machine import ANY, DAEMON, GITEA, GPU

pytestmark = [
    *selftest_machine.NEEDS,
    pytest.mark.skipif(not engine_machine.HAS_ENGINES, reason="there is no podman and no dockerd"),
]
if "GPUCI_SOAK" not in os.environ:
    pytest.skip("several minutes: make soak", allow_module_level=True)

BOTH = ("gpu-count-2",)
# In seconds.
LONGEST, PAUSE = 1500, 4.0
CLAIM = "/srv/job claim 2"
TWICE = "HELD 2 TIMES"
# The same in a container. A log also shows the command, which is not to look like its output.
# The image has no flock(1), and the machine has.
_CLAIM = (
    """one=$(echo "$GPU_CI_DEVICES" | busybox grep -o 'GPU-[0-9a-f-]*'); """
    "busybox chroot /host flock -n /srv/claims/$one sleep 2 && echo GPU $one || "
    "echo HELD $((1 + 1)) TIMES"
)
RUN = f"run --rm --network none -v /:/host:ro {{}} {BOX} sh -c {shlex.quote(_CLAIM)}"
CONTAINER = f"docker {RUN.format('--gpus all')}"
PEOPLE = {
    "alice": f"gpu-run -- {CLAIM}",
    "docker": f"docker {RUN.format('--gpus 1')}",
    "podman": f"podman {RUN.format('-e GPU_COUNT=1')}",
}
FULL = "head -c 200M /dev/zero >filler; sleep 60"


def test_no_gpu_is_held_twice_and_nothing_stays_leased_whatever_is_killed():
    seed = int(os.environ.get("GPUCI_STORM_SEED") or time.time())
    print(f"GPUCI_STORM_SEED={seed}")
    chance = random.Random(seed)
    with runners_engines.started("storm", limits=Limits(disk=100)) as site:
        site.wait(site.is_ready)
        jobs = {"many": (GPU, CLAIM, {"strategy": {"matrix": {"n": [*range(50)]}}})}
        jobs |= {f"one{n}": (GPU, CLAIM) for n in range(10)}
        jobs |= {f"box{n}": (GPU, CONTAINER) for n in range(10)}
        jobs |= {f"two{n}": (BOTH, CLAIM) for n in range(10)}
        jobs |= {f"cpu{n}": (ANY, "sleep 0.5") for n in range(15)}
        # A disk that is full is its job's own trouble.
        jobs["full"] = (ANY, FULL)
        late = site.push(late=(BOTH, CLAIM))
        run = site.push(**jobs)
        site.cancel(late)
        for name, command in PEOPLE.items():
            loop = f"for n in $(seq 20); do {command}; done; echo ended"
            words = ["sh", "-c", loop]
            site.sh(
                f"systemd-run --quiet --unit=test-{name} -p StandardOutput=file:/srv/said/{name} "
                f"-p StandardError=file:/srv/said/{name} "
                + shlex.join(site.box.command("alice", *words) if name == "alice" else words)
            )
        kills = {
            "daemon": lambda: site.sh(
                f"systemctl kill -s KILL {DAEMON}; systemctl restart {DAEMON}"
            ),
            "runner": lambda: kill(site, chance, "MainPID"),
            "unit": lambda: kill(site, chance, ""),
            "server": lambda: site.sh(f"systemctl restart {GITEA}"),
            "container": lambda: site.sh("docker kill $(docker ps -q | shuf -n 1); true"),
        }
        began, killed = time.monotonic(), 0
        while not is_over(site, run) and time.monotonic() - began < LONGEST:
            name = chance.choice([*kills, "nothing", "nothing"])
            if name in kills and killed < 25:
                killed += 1
                kills[name]()
                site.wait(site.answers)
            time.sleep(PAUSE)
        states = [*site.states(run).values()]
        print({state: states.count(state) for state in sorted({*states})}, f"{killed} kills")
        # A job whose runner was killed fails, or the server never learns how it ended.
        assert len(states) == len(jobs) - 1 + 50
        assert killed >= 10
        assert len(states) - states.count("success") <= killed + 1
        for job in site.jobs(run):
            assert TWICE not in "\n".join(site.log(run, job)), job
        for name in PEOPLE:
            site.wait(lambda name=name: "ended" in site.box.said(name), 900)
            said = site.box.said(name)
            assert TWICE not in said
            # Each has had GPUs, however long the others have had them.
            assert "GPU-" in said, said
        site.settle()
        site.wait(site.is_ready, 300)
        assert sorted(held(site)) == sorted(site.uuids)
        assert site.see("docker ps -aq; docker network ls -q --filter type=custom") == ""


def held(site):
    return [gpu for one in site.box.leases()["holders"].values() for gpu in one["gpus"]]


def is_over(site, run):
    """Whether no job waits, and each that the server calls running has lost its runner."""
    states = site.states(run).values()
    return "queued" not in states and not site.runners("busy")


def kill(site, chance, whom):
    units = sorted(site.units())
    if units:
        main = " --kill-whom=main" if whom else ""
        site.sh(f"systemctl kill -s KILL{main} {chance.choice(units)}; true")
