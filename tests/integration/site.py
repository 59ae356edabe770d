# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A real Juju model in the words of its tests, which are those of the lab's wherever they can."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import jubilant

from tests.fly import Fly
from tests.lab.site import TRACES

# A release that has to be downloaded is about 1 GB.
DEPLOY_SECONDS = 45 * 60
SETTLE_SECONDS = 15 * 60
IMAGE = {"type": "registry-image", "source": {"repository": "busybox"}}


class Site:
    """Asks and changes what an operator would.

    Args:
        juju: of the model.
        charm: the packed charm.
        home: a directory of the tests' own, for fly and an empty resource.
        machines: ids of the machines to deploy to, in the order of `PLACES`; the cloud's own
            when empty.
    """

    PLACES = ("web", "worker", "other", "solo")

    def __init__(
        self, juju: jubilant.Juju, charm: pathlib.Path, home: pathlib.Path, machines: list[str]
    ):
        self.juju = juju
        self.charm = charm
        self.machines = dict(zip(self.PLACES, machines, strict=False))
        there = juju.status().machines if machines else {}
        self.addresses = {place: there[name].dns_name for place, name in self.machines.items()}
        folder = os.environ.get("GPUCI_TASK_ROOTFS")
        root = {"rootfs_uri": f"raw://{folder}"} if folder else {"image_resource": IMAGE}
        self.fly = Fly(home, root)

    def deploy(self, app: str, place: str, **options: Any) -> None:
        """Deploy the charm, with the release at hand or none: then it downloads one."""
        empty = self.fly.home / "concourse.tgz"
        empty.touch()
        release = os.environ.get("GPUCI_CONCOURSE_TARBALL") or str(empty)
        config = {name.replace("_", "-"): value for name, value in options.items()}
        self.juju.deploy(
            self.charm, app, config=config, resources={"concourse": release},
            to=self.machines.get(place),
        )  # fmt: skip

    def until(
        self, unit: str, wanted: Callable[[str, str], bool], seconds: float = SETTLE_SECONDS
    ) -> str:
        """Wait until a unit rests with such a status and message; the message.

        Raises:
            TimeoutError: it does not, with Juju's status.
            jubilant.WaitError: a hook failed.
        """

        def rests(status: jubilant.Status) -> bool:
            return self._resting(status, unit, wanted)

        self.juju.wait(rests, error=jubilant.any_error, timeout=seconds)
        return self.status(unit)[1]

    def _resting(
        self, status: jubilant.Status, unit: str, wanted: Callable[[str, str], bool]
    ) -> bool:
        found = status.apps[unit.partition("/")[0]].units.get(unit)
        return bool(
            found
            and found.juju_status.current == "idle"
            and wanted(found.workload_status.current, found.workload_status.message)
        )

    def active(self, unit: str, text: str = "", seconds: float = SETTLE_SECONDS) -> str:
        """Wait until a unit is active with a message that begins so; the message."""
        return self.until(
            unit, lambda kind, said: kind == "active" and said.startswith(text), seconds
        )

    def blocked(self, unit: str, text: str) -> str:
        """Wait until a unit is blocked with a message that has this text; the message."""
        return self.until(unit, lambda kind, said: kind == "blocked" and text in said)

    def worker_ready(self, unit: str) -> str:
        """Wait until a worker is ready, or blocked for want of a GPU; the message."""
        return self.until(
            unit,
            lambda kind, said: kind == "active" or (kind == "blocked" and "GPU" in said),
            DEPLOY_SECONDS,
        )

    def status(self, unit: str) -> tuple[str, str]:
        """The status and message of a unit."""
        status = self.juju.status().apps[unit.partition("/")[0]].units[unit].workload_status
        return status.current, status.message

    def units(self, app: str) -> list[str]:
        """The units of an application; none where there is no such application."""
        found = self.juju.status().apps.get(app)
        return sorted(found.units) if found else []

    def wait_while(self, so: Callable[[], bool], seconds: float = SETTLE_SECONDS) -> None:
        """Wait until something is no longer so."""
        deadline = time.monotonic() + seconds
        while so():
            assert time.monotonic() < deadline, self.juju.cli("status")
            time.sleep(1)

    def configure(self, app: str, **options: str) -> None:
        """`juju config`; does not wait."""
        self.juju.config(app, {name.replace("_", "-"): value for name, value in options.items()})

    def act(self, unit: str, name: str, **params: Any) -> dict[str, Any]:
        """An action's results.

        Raises:
            jubilant.TaskError: it failed.
        """
        return self.juju.run(unit, name, params, wait=SETTLE_SECONDS).results

    def sh(self, script: str, unit: str) -> str:
        """The output of a shell line in a unit's machine."""
        return self.juju.exec(f"bash -c {shlex.quote(script)}", unit=unit).stdout

    def traces(self, place: str) -> dict[str, list[str]]:
        """What of ours is on a machine that the tests were given.

        By ssh, since Juju 4 forgets a machine with its last unit.
        """
        script = "; ".join(f"({line}) | sed 's/^/{kind} /'" for kind, line in TRACES.items())
        look = f"sudo bash -c {shlex.quote(f'{script}; true')}"
        done = subprocess.run(
            ["ssh", "-o", "BatchMode=yes", f"ubuntu@{self.addresses[place]}", look],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        found: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            kind, _, what = line.partition(" ")
            found.setdefault(kind, []).append(what)
        return found

    def login(self, unit: str) -> str:
        """Get fly from a web unit and log in as its administrator; web's URL."""
        admin = self.act(unit, "get-admin-password")
        url = f"{admin['url']}/api/v1/cli?arch=amd64&platform=linux"
        with urllib.request.urlopen(url, timeout=120) as answer:
            self.fly.program.write_bytes(answer.read())
        self.fly.program.chmod(0o700)
        self.fly.login_as(admin["url"], admin["username"], admin["password"])
        return str(admin["url"])

    def workers(self) -> list[dict[str, Any]]:
        """Concourse's workers that run."""
        return [worker for worker in self.fly.workers() if worker["state"] == "running"]

    def wait_for_tags(self, *tags: str, seconds: float = 120) -> None:
        """Wait until a worker with these tags runs."""
        deadline = time.monotonic() + seconds
        while not any(set(tags) <= set(worker["tags"] or ()) for worker in self.workers()):
            assert time.monotonic() < deadline, json.dumps(self.fly.workers(), indent=1)
            time.sleep(1)

    def task(self, script: str, tags: Sequence[str] = ("gpu",), **params: str):
        """Run a shell script as a CI task; its completed fly."""
        arguments = self.fly.task(["sh", "-c", script], list(tags), params)
        return self.fly.run(*arguments, timeout=600)
