# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What an attacker has: pipelines, task configs, params, paths, images. And what shows it."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import threading
import time
from typing import Any, TypeVar

from tests.lab import outfit
from tests.lab.builds import Build
from tests.lab.leases import Tasks, cards, holders
from tests.lab.site import PROBE, Site

# Of one of several jobs.
Name = TypeVar("Name")
PROGRAM = pathlib.Path(__file__).with_name("mischief.c")
# What attackers write for all to read, in the root that their tasks share.
EVIDENCE = "/evidence"
RAW = f"raw://{outfit.ROOTFS}"
RAN = "the attack ran"
RESOURCES = [{"name": "thing", "type": "mock", "tags": ["gpu"], "source": {}}]
# The work folder of a one-off build's task: Concourse 8.3 atc/engine/step_factory.go.
WORK_FOLDER = f"/tmp/build/{hashlib.sha256(b'one-off').hexdigest()[:8]}"
# Concourse can lose the last lines of a process that ends right after it has written them.
_END = "status=$?; sleep 0.3; exit $status"
# How containerd shows what the wrapper says.
_WORDS = re.compile(r"gpu-ci-worker: (.+?)(?:: unknown|\"|\n|$)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")
# Longer than anything that goes on opening nodes waits between two times.
_PAUSE = 0.4
END_SECONDS = 40


def compile_program(folder: pathlib.Path) -> bytes:
    """The program that attackers' images hold, for any root file system."""
    target = folder / "mischief"
    command = ["gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", target, PROGRAM]
    subprocess.run(command, check=True, timeout=120)
    return target.read_bytes()


def step(name: str, script: str, gpus: str = "0", image: str = "", **config: Any) -> dict:
    """A task of a pipeline, of a shell script.

    Args:
        name: of the task.
        script: what it runs.
        gpus: its GPU_COUNT.
        image: the output of an earlier task that is its image; else the lab's root.
        config: more of its task config, such as inputs; `params` are added to GPU_COUNT.
    """
    params = {"GPU_COUNT": gpus, **config.pop("params", {})}
    user = config.pop("user", "")
    root = {} if image else {"rootfs_uri": config.pop("rootfs_uri", RAW)}
    more = {"image": image} if image else {}
    for key in ("privileged", "input_mapping", "output_mapping"):
        if key in config:
            more[key] = config.pop(key)
    run = {"path": "sh", "args": ["-c", f"echo {RAN}\n{script}\n{_END}"], "user": user}
    task = {"platform": "linux", "params": params, "run": run, **root, **config}
    return {"task": name, "tags": ["gpu"], "config": task, **more}


def image_step(name: str, script: str = "", **metadata: Any) -> dict:
    """A task that makes an image of the lab's root; `script` runs in its root file system."""
    text = json.dumps({"env": ["PATH=/bin"], "user": "", **metadata})
    make = f"""
set -e
mkdir -p {name}/rootfs && cd {name}/rootfs
mkdir -p proc dev sys tmp etc
cp -a /bin .
cp /etc/passwd /etc/group etc/
echo "$METADATA" >../metadata.json
{script}
"""
    return step(f"make-{name}", make, outputs=[{"name": name}], params={"METADATA": text})


class Ended:
    """A job that has ended.

    Attributes:
        status: fly's exit status.
        output: what it printed, without colours.
    """

    def __init__(self, status: int, output: str):
        self.status = status
        self.output = _COLOURS.sub("", output)

    @property
    def lines(self) -> list[str]:
        """The lines of its output."""
        return self.output.splitlines()

    @property
    def ran(self) -> int:
        """How many of its tasks ran."""
        return self.lines.count(RAN)

    @property
    def refusal(self) -> str:
        """What the wrapper said against it; empty if it said nothing."""
        found = _WORDS.search(self.output)
        return found[1] if found else ""

    @property
    def cards(self) -> list[int]:
        """The cards that a task which ran PROBE could open."""
        return cards(self.output)


class Attacker:
    """Runs pipelines on the lab's worker, and reads what they left for all to see.

    Attributes:
        honest: tasks of somebody else.
        has_lost: whether an honest task has had all GPUs since.
    """

    def __init__(self, site: Site):
        self.site = site
        self.honest = Tasks(site)
        self.has_lost = False
        self._builds: list[Build] = []
        self._setting = threading.Lock()
        self._count = 0

    def start(self, *steps: dict) -> Build:
        """Start a job of these tasks; one alone as a one-off build, which web starts at once."""
        build = Build(self.site.fly, *self._arguments(*steps))
        self._builds.append(build)
        return build

    def _arguments(self, *steps: dict) -> list[str]:
        fly = self.site.fly
        if len(steps) == 1 and steps[0].keys() == {"task", "tags", "config"}:
            return ["execute", "-c", str(fly.config_file(steps[0]["config"])), "--tag=gpu"]
        with self._setting:
            self._count += 1
            name = f"attack-{os.getpid()}-{self._count}"
            pipeline = {"jobs": [{"name": name, "plan": [*steps]}]}
            if any("task" not in step for step in steps):
                pipeline["resources"] = RESOURCES
            return fly.job(name, pipeline)

    def run(self, *steps: dict, seconds: float = 90) -> Ended:
        """Run these to their end, as `start` does."""
        build = self.start(*steps)
        return Ended(build.wait(seconds), build.output)

    def at_once(self, jobs: dict[Name, list[dict]]) -> dict[Name, Ended]:
        """Run these at once, each to its end, as `start` does; by their names."""
        builds = {name: self.start(*steps) for name, steps in jobs.items()}
        return {name: Ended(build.wait(300), build.output) for name, build in builds.items()}

    def one(self, script: str, gpus: str = "0", **config: Any) -> Ended:
        """Run one task, a one-off build, to its end."""
        return self.run(step("one-off", script, gpus, **config))

    def abort(self) -> None:
        """Abort every build that runs, and wait for its end."""
        listed = json.loads(self.site.fly.run("builds", "--json").stdout)
        for build in listed:
            if build["status"] in ("started", "pending"):
                self.site.fly.run("abort-build", "-b", str(build["id"]))
        for build in self._builds:
            build.wait(END_SECONDS)
        self._builds.clear()

    def read(self, name: str) -> str:
        """What an attacker wrote to a file of the evidence; empty if there is none."""
        return self.site.sh(f"cat {outfit.ROOTFS}{EVIDENCE}/{name} 2>&-; true")

    def noted(self, name: str) -> list[tuple[float, str]]:
        """What `mischief` noted in a diary, with the seconds since boot."""
        pairs = [line.split(" ", 1) for line in self.read(name).splitlines()]
        return [(float(when), what) for when, what in pairs]

    def wait_for(self, name: str, what: str = "", seconds: float = 20) -> None:
        """Wait until a file of the evidence has `what` in it."""
        deadline = time.monotonic() + seconds
        while what not in (text := self.read(name)) or not text:
            assert time.monotonic() < deadline, f"{name}: {text!r}"
            time.sleep(0.1)


def assert_refused(done: Ended) -> None:
    """No task ran, and the wrapper said why, in printable words."""
    assert (done.ran, done.status) == (0, 2), done.output
    assert done.refusal, done.output
    assert done.refusal.isprintable(), repr(done.refusal)


def descriptors(site: Site) -> str:
    """Where processes of the worker have a GPU open."""
    return site.sh("find /proc/[0-9]*/fd -lname '/dev/nvidia[0-9]' 2>&-; true")


def assert_lost_to(attacker: Attacker, diary: str = "") -> None:
    """An honest task gets both GPUs alone, and from then on no attacker has one.

    Args:
        attacker: who was at work until now, as `diary` or its open descriptors show.
        diary: of an attacker who notes whenever it has one.
    """
    assert attacker.noted(diary) if diary else descriptors(attacker.site), "it had none before"
    victim = attacker.honest.start("victim", GPU_COUNT="2")
    begun = victim.begun()
    assert len(victim.gpus()) == 2
    assert descriptors(attacker.site) == "", "somebody else has a GPU open"
    if diary:
        time.sleep(_PAUSE)
        late = [entry for entry in attacker.noted(diary) if entry[0] > begun]
        assert not late, late[-1]
    assert victim.end() == 0, victim.build.output
    attacker.has_lost = True


def assert_unharmed(attacker: Attacker) -> None:
    """Both GPUs can be had at once, at once; none is out of use; who held one holds none."""
    site = attacker.site
    out = site.sh("cat /var/lib/gpu-ci/quarantine/*.json /run/gpu-ci/cordons/*.json 2>&-; true")
    assert out == "", out
    if not attacker.has_lost:
        done = attacker.one(PROBE, "2")
        assert (done.status, done.cards) == (0, [0, 1]), done.output
    assert len(holders(site)) == 1, holders(site)
    assert descriptors(site) == ""
