# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run tasks that hold their GPUs until a file lets them end, and read the worker's leases."""

import json
import subprocess
import time
from typing import Any

from tests.lab import outfit
from tests.lab.builds import Build
from tests.lab.site import OPENS, PROBE, Site

TABLE = "/run/gpu-ci/leases/leases.json"
# In the root file system that all tasks of the lab share.
_ASK, _GO = "/tmp/ask-{name}", "/tmp/go-{name}"
# A machine's clock since boot is its containers' too, so both can be compared.
_UPTIME = "cut -d' ' -f1 /proc/uptime"
_HOLD = f"""{PROBE}
echo "up $({_UPTIME})"
until [ -e {_GO} ]; do
  sleep 0.1
  if [ -e {_ASK} ]; then echo "still here $(cat {_ASK})"; fi
done
"""
_DEATH = f"while kill -0 $0 2>&-; do sleep 0.02; done; {_UPTIME}"


class Task:
    """A task that prints its GPUs, then waits for a file that lets it end.

    Args:
        site: where it is to run.
        name: of its own among those that run.
        before: its first commands.
        params: its params.
    """

    def __init__(self, site: Site, name: str, before: str, params: dict[str, str]):
        self._site = site
        self._ask, self._go = (f"{outfit.ROOTFS}{path.format(name=name)}" for path in (_ASK, _GO))
        self._asked = 0
        site.sh(f"rm -f {self._ask} {self._go}")
        script = before + _HOLD.format(name=name)
        self.build = Build(site.fly, *site.fly.task(["sh", "-c", script], ["gpu"], params))

    def begun(self) -> float:
        """Wait until it has begun; return when, in seconds since boot."""
        return float(self.build.line(r"up (\d+\.\d+)")[1])

    def gpus(self) -> list[str]:
        """Wait until it has begun; return the ids of its GPUs in its variables."""
        self.begun()
        return self.build.line(r"NVIDIA_VISIBLE_DEVICES=(.*)")[1].split(",")

    def cards(self) -> list[int]:
        """Wait until it has begun; return the numbers of the cards that it can open."""
        self.begun()
        return cards(self.build.output)

    def lease(self) -> dict[str, Any]:
        """Return its lease; an older one of the same GPUs may not be found gone yet."""
        gpus = self.gpus()  # first: it has no lease before it begins
        found = [held for held in holders(self._site).values() if held["gpus"] == gpus]
        return max(found, key=lambda held: held["since"])

    def process(self) -> int:
        """Return its process, in its machine's numbers."""
        return int(self._site.sh(f"cat {self.lease()['bundle']}/task.pid"))

    def answer(self) -> None:
        """Make it print a line, and wait until Concourse has it."""
        self._asked += 1
        self._site.sh(f"echo {self._asked} >{self._ask}")
        self.build.line(f"still here {self._asked}")

    def tell_to_end(self) -> None:
        """Tell it to end, without waiting."""
        self._site.sh(f"touch {self._go}")

    def end(self) -> int:
        """Tell it to end, and wait; return fly's exit status."""
        self.tell_to_end()
        return self.build.wait()


class Tasks:
    """The tasks of one test; all end with it."""

    def __init__(self, site: Site):
        self._site = site
        self._all: list[Task] = []

    def start(self, name: str, before: str = "", **params: str) -> Task:
        """Start a task; it may have to wait."""
        task = Task(self._site, name, before, params)
        self._all.append(task)
        return task

    def end(self) -> None:
        """End all that still run."""
        for task in self._all:
            task.tell_to_end()
        for task in self._all:
            task.build.wait()


class Death:
    """Watches a process in a machine and reports when it ends."""

    def __init__(self, site: Site, pid: int):
        argv = [*site.machine().enter_command(), "/bin/sh", "-c", _DEATH, str(pid)]
        self._watch = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def when(self) -> float:
        """Wait for its end; return when it was, in seconds since boot."""
        return float(self._watch.communicate(timeout=60)[0])


def cards(output: str) -> list[int]:
    """Return the numbers of the cards that PROBE could open; fail if a present one did not open.

    fly prints the script too, so a line counts as a whole.
    """
    lines = output.replace("\r", "").splitlines()
    found = [n for n in (0, 1) if f"nvidia{n} {OPENS}" in lines]
    assert [n for n in (0, 1) if f"nvidia{n} absent" not in lines] == found, output
    return found


def holders(site: Site) -> dict[str, dict[str, Any]]:
    """Return the holders of GPUs of worker/0, by container, including those found gone later."""
    return json.loads(site.sh(f"cat {TABLE}"))["holders"]


def waiting(site: Site, count: int) -> list[dict[str, Any]]:
    """Wait for so many waiters in the queue of worker/0, and return them.

    Raises:
        AssertionError: there is another number after a minute.
    """
    deadline = time.monotonic() + 60
    while len(waiters := json.loads(site.sh(f"cat {TABLE}"))["waiters"]) != count:
        assert time.monotonic() < deadline, waiters
        time.sleep(0.1)
    return waiters


def journal(site: Site) -> list[dict[str, Any]]:
    """Return the GPU runtime's decisions on worker/0, the oldest first."""
    return [json.loads(line) for line in site.sh("cat /var/log/gpu-ci/oci.log").splitlines()]
