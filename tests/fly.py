# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""fly, Concourse's command-line tool, in the words of the tests."""

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.lab.errors import LabError

TARGET = "lab"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
# What the lab's task prints, and its `get`: devices, and variables that have to do with GPUs.
SHOW_GPUS = """\
for node in /dev/nvidia* /dev/nvidia-caps/*; do
  if [ -c "$node" ]; then echo "device $node"; fi
done
env | grep -E '^(NVIDIA_|GPU_|CUDA_)' | sort | sed 's/^/variable /'
"""


class Fly:
    """fly against one Concourse.

    Args:
        home: fly's own directory, with the program in it.
        root: what a task's config says of its root file system: `rootfs_uri` or `image_resource`.
    """

    def __init__(self, home: pathlib.Path, root: Mapping[str, Any]):
        self.home = home
        self.program = home / "fly"
        self.root = root

    def login_as(self, url: str, username: str, password: str) -> None:
        """Log in.

        Raises:
            LabError: web does not answer, or refuses.
        """
        done = self.run("login", "-c", url, "-u", username, "-p", password)
        if done.returncode:
            raise LabError(f"cannot log in to {url}: {done.stdout}{done.stderr}")

    def command(self, *arguments: str) -> list[str]:
        """A fly command line that reaches Concourse."""
        return [str(self.program), "-t", TARGET, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """The environment that fly runs with: its home is its own."""
        return {**ENVIRONMENT, "HOME": str(self.home), "TERM": os.environ.get("TERM", "dumb")}

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
        """A task's file, with the root file system that every worker has."""
        return self.config_file(
            {
                "platform": "linux",
                **self.root,
                "params": params or {},
                "run": {"path": argv[0], "args": argv[1:], "user": user},
            }
        )

    def config_file(self, task: dict[str, Any]) -> pathlib.Path:
        """A file of this task config."""
        text = json.dumps(task)
        # fly reads it a moment later, when another task's may have been written.
        path = self.home / f"task-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yml"
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
        path = self.home / "pipeline.yml"
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
