# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A container driven through its life as containerd's shim does it, each call timed."""

import os
import shutil
from pathlib import Path

from benchmarks.measure import Failed, Times, begun, spawned
from benchmarks.place import BUNDLES, ROOT_OF_RUNC, compact, make_root

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "GOMAXPROCS": "4",
}
# How runc says that what it is to kill has ended (containerd 2.3.1
# cmd/containerd-shim-runc-v2/process/utils.go, checkKillError).
OVER = ("os: process already finished", "container not running", "no such process")


class Container:
    """One container: its bundle, and the runtime that makes it."""

    def __init__(
        self,
        runtime: Path,
        handle: str,
        spec: dict,
        bundles: Path = BUNDLES,
        **variables: str,
    ) -> None:
        """Make its volume and its bundle, beside the others in `bundles`.

        `variables` are the runtime's own beside what the shim gives it.
        """
        self.runtime = runtime
        self.handle = handle
        self.environment = ENVIRONMENT | variables
        self.volume = make_root(spec, handle)
        self.bundle = bundles / handle
        self.bundle.mkdir(parents=True)
        self.log = self.bundle / "log.json"
        self.spec = spec
        (self.bundle / "config.json").write_text(compact(spec).replace("HANDLE", handle))

    def argv(self, *words: object) -> list[object]:
        flags = ["--root", ROOT_OF_RUNC, "--log", self.log, "--log-format", "json"]
        return [self.runtime, *flags, *words]

    def call(self, *words: object) -> float:
        """Milliseconds that the runtime takes for this call."""
        return spawned(self.argv(*words), self.environment, self.log)

    def _create(self) -> list[object]:
        pid_file = self.bundle / "init.pid"
        return ["create", "--bundle", self.bundle, "--pid-file", pid_file, self.handle]

    def create(self) -> float:
        return self.call(*self._create())

    def begin_create(self) -> int:
        """Process id of a create that may take long."""
        return begun(self.argv(*self._create()), self.environment)

    def start(self) -> float:
        return self.call("start", self.handle)

    def exec(self, line: str) -> float:
        """Start a shell for `line` as the step's process, and leave it running."""
        process = {**self.spec["process"], "args": ["/bin/sh", "-c", line]}
        path = self.bundle / "runc-process"
        path.write_text(compact(process))
        flags = ["--detach", "--pid-file", self.bundle / "task.pid"]
        return self.call("exec", "--process", path, *flags, self.handle)

    def pid(self, name: str) -> int:
        """Of the container's `init` or of its `task`, as the host counts."""
        return int((self.bundle / f"{name}.pid").read_text())

    def wait(self, name: str) -> int:
        """Reap that process, as the shim does, which then removes the step's pid file."""
        _, status = os.waitpid(self.pid(name), 0)
        if name != "init":
            (self.bundle / f"{name}.pid").unlink()
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> float:
        took = self.call("kill", self.handle, "9")
        self._wait_for_all()
        return took

    def _wait_for_all(self) -> None:
        if (self.bundle / "task.pid").exists():
            self.wait("task")  # init can't end before that
        self.wait("init")

    def delete(self, *flags: str) -> float:
        return self.call("delete", *flags, self.handle)

    def forget(self) -> None:
        """Remove the bundle, as the shim does last, and the volume."""
        shutil.rmtree(self.bundle)
        shutil.rmtree(self.volume)

    def end(self) -> None:
        """Kill it, unless it has ended with its lease, and leave nothing of it."""
        try:
            self.call("kill", self.handle, "9")
        except Failed as error:
            if not any(words in str(error) for words in OVER):
                raise
        self._wait_for_all()
        self.delete()
        self.forget()

    def life(self) -> Times:
        """All calls of one step, and their sum as `a step's calls`."""
        times = {"create": self.create(), "start": self.start(), "exec": self.exec("exit 0")}
        self.wait("task")
        state = self.call("state", self.handle)
        times["kill"] = self.kill()
        times["delete"] = self.delete()
        times["delete --force"] = self.delete("--force")
        self.forget()
        return {**times, "a step's calls": sum(times.values()), "state": state}
