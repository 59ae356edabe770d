# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse in the lab: which one, the real or the stand-in, and its command-line tool fly."""

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

from tests.lab import download, outfit
from tests.lab.errors import LabError, WrongUse
from tests.lab.machines import CLEAN_ENV
from tests.lab.session import Lab

TARGET = "lab"
FLY_IN_RELEASE = "/opt/concourse/current/fly-assets/fly-linux-amd64.tgz"
# What the lab's task prints, and its `get`: devices, and variables that have to do with GPUs.
SHOW_GPUS = """\
for node in /dev/nvidia* /dev/nvidia-caps/*; do
  if [ -c "$node" ]; then echo "device $node"; fi
done
env | grep -E '^(NVIDIA_|GPU_|CUDA_)' | sort | sed 's/^/variable /'
"""


def is_real() -> bool:
    """Whether the real Concourse is at hand."""
    return bool(os.environ.get("GPUCI_CONCOURSE_TARBALL")) or download.CACHED.is_file()


def choose(lab: Lab) -> tuple[pathlib.Path, str]:
    """The release tarball that the charm gets as its resource, and its name for people.

    GPUCI_CONCOURSE_TARBALL if it is set, else the cache that `lab fetch concourse` fills, else the
    stand-in, which is made here (a few seconds).

    Raises:
        WrongUse: GPUCI_CONCOURSE_TARBALL names no file.
        LabError: the stand-in cannot be made.
    """
    given = os.environ.get("GPUCI_CONCOURSE_TARBALL", "")
    if given:
        path = pathlib.Path(given)
        if not path.is_file():
            raise WrongUse(f"GPUCI_CONCOURSE_TARBALL: {path} is no file")
        return path.resolve(), f"real ({path.name})"
    if download.CACHED.is_file():
        return download.CACHED, f"real ({download.CACHED.name}, from the cache)"
    from tests.fakes.concourse import build

    path = lab.state_dir / "build/concourse-standin.tgz"
    path.parent.mkdir(exist_ok=True)
    try:
        build.build(path)
    except build.BuildError as error:
        raise LabError(f"cannot make the Concourse stand-in: {error}") from error
    return path, "stand-in (lab fetch concourse, or GPUCI_CONCOURSE_TARBALL, for the real one)"


class Fly:
    """fly against the lab's web unit.

    Args:
        lab: the lab.
        web: the web unit; the first unit that has Concourse's web when empty.

    Raises:
        WrongUse: no such unit.
    """

    def __init__(self, lab: Lab, web: str = ""):
        self._lab = lab
        self._web = web or self._find_web()
        self._home = lab.state_dir / "fly"
        self.program = self._home / "fly"

    def _find_web(self) -> str:
        for app in self._lab.store.column("SELECT name FROM application WHERE played = ''"):
            mode = self._lab.model.config(app).get("deployment-mode")
            sql = "SELECT name FROM unit WHERE app = ? ORDER BY number LIMIT 1"
            unit = self._lab.store.value(sql, app)
            if mode in ("web", "all") and unit:
                return str(unit)
        raise WrongUse("no web unit in the lab: deploy one with --config deployment-mode=web")

    def login(self) -> None:
        """Get fly from the web unit's release and log in as its administrator.

        Raises:
            LabError: web does not answer, or refuses.
        """
        machine = self._lab.park.get(self._web.replace("/", "-"))
        self._home.mkdir(exist_ok=True, mode=0o700)
        unpack = f"tar -xzOf {FLY_IN_RELEASE} fly"
        with open(self._home / "fly.new", "wb") as file:
            subprocess.run(
                [*machine.enter_command(), "/bin/sh", "-c", unpack],
                stdout=file, check=True, timeout=120,
            )  # fmt: skip
        (self._home / "fly.new").chmod(0o700)
        (self._home / "fly.new").replace(self.program)
        answer = self._credentials()
        done = self.run(
            "login", "-c", answer["url"], "-u", answer["username"], "-p", answer["password"]
        )
        if done.returncode:
            raise LabError(f"cannot log in to {answer['url']}: {done.stdout}{done.stderr}")

    def _credentials(self) -> dict[str, str]:
        lab = self._lab
        action = lab.model.run_action(self._web, "get-admin-password", {})
        lab.settle()
        row = lab.store.row("SELECT * FROM action WHERE id = ?", action)
        if not row or row["status"] != "completed":
            why = row["message"] if row else "it is gone"
            raise LabError(f"{self._web} does not tell its administrator's password: {why}")
        return json.loads(row["results"])

    def command(self, *arguments: str) -> list[str]:
        """A fly command line that reaches the machines."""
        return self._lab.park.network.inside([str(self.program), "-t", TARGET, *arguments])

    @property
    def environment(self) -> dict[str, str]:
        """The environment that fly runs with: its home is the lab's."""
        return {**CLEAN_ENV, "HOME": str(self._home), "TERM": os.environ.get("TERM", "dumb")}

    def run(self, *arguments: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run fly and take its output."""
        return subprocess.run(
            self.command(*arguments), env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def attached(self, *arguments: str) -> int:
        """Run fly on the caller's terminal; its exit status."""
        sys.stdout.flush()
        done = subprocess.run(self.command(*arguments), env=self.environment, check=False)
        return done.returncode

    def on_terminal(self, *arguments: str, timeout: float = 60) -> tuple[int, str]:
        """Run fly on a terminal of its own, which `fly hijack` wants; exit status and output."""
        ours, its = os.openpty()
        process = subprocess.Popen(
            self.command(*arguments), env=self.environment, stdin=its, stdout=its, stderr=its,
            start_new_session=True,
        )  # fmt: skip
        os.close(its)
        alarm = threading.Timer(timeout, process.kill)
        alarm.start()
        output = b""
        with contextlib.suppress(OSError):  # a terminal that nobody has open reads as EIO
            while part := os.read(ours, 4096):
                output += part
        os.close(ours)
        status = process.wait()
        alarm.cancel()
        return status, output.decode(errors="replace")

    def workers(self) -> list[dict]:
        """Concourse's own list of its workers.

        Raises:
            LabError: web does not answer.
        """
        done = self.run("workers", "--json")
        if done.returncode:
            raise LabError(f"fly workers failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) or []

    def task_file(
        self, argv: list[str], params: dict[str, str] | None = None, user: str = ""
    ) -> pathlib.Path:
        """A task's file, with the root file system that every worker of the lab has."""
        return self.config_file(
            {
                "platform": "linux",
                "rootfs_uri": f"raw://{outfit.ROOTFS}",
                "params": params or {},
                "run": {"path": argv[0], "args": argv[1:], "user": user},
            }
        )

    def config_file(self, task: dict[str, Any]) -> pathlib.Path:
        """A file of this task config."""
        text = json.dumps(task)
        # fly reads it a moment later, when another task's may have been written.
        path = self._home / f"task-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yml"
        path.write_text(text)
        return path

    def task(
        self,
        argv: list[str],
        tags: list[str],
        params: dict[str, str] | None = None,
        user: str = "",
    ) -> list[str]:
        """fly's arguments that run a task: `attached(*task(...))` or `run(*task(...))`."""
        flags = [f"--tag={tag}" for tag in tags]
        return ["execute", "-c", str(self.task_file(argv, params, user)), *flags]

    def job(self, job: str, pipeline: dict[str, Any]) -> list[str]:
        """Set a pipeline; fly's arguments that run one job of it, as those of `task`.

        Raises:
            LabError: Concourse refuses the pipeline.
        """
        path = self._home / "pipeline.yml"
        path.write_text(json.dumps(pipeline))
        name = f"lab-{job}"
        for arguments in (
            ("set-pipeline", "-n", "-p", name, "-c", str(path)),
            ("unpause-pipeline", "-p", name),
        ):
            done = self.run(*arguments)
            if done.returncode:
                raise LabError(f"fly {arguments[0]} failed: {done.stdout}{done.stderr}")
        return ["trigger-job", "-j", f"{name}/{job}", "-w"]

    def get(self, tags: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a job that gets a resource on a worker with these tags; its completed fly.

        Raises:
            LabError: as `job` does.
        """
        # Concourse makes no container for a version that it has got before.
        source = {"force_version": str(time.time_ns())}
        pipeline = {
            "resources": [{"name": "thing", "type": "mock", "tags": tags, "source": source}],
            "jobs": [{"name": "get", "plan": [{"get": "thing", "tags": tags}]}],
        }
        return self.run(*self.job("get", pipeline))
