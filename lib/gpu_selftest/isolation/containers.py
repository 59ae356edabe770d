# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make containers of a CI task's shape, by calls of the GPU runtime as of containerd's shim.

A test so takes the way of every CI task, without containerd or CI system. The calls, files and
names are those of containerd 2.3.1 (cmd/containerd-shim-runc-v2/process) and go-runc 1.1.0.
"""

import collections.abc
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import threading
import types
import typing

from gpu_agent import paths as wrapper
from gpu_runtime import lease_manager as broker
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.policy import TaskFolders
from gpu_runtime.refusal import Refused
from gpu_selftest import results
from gpu_selftest.isolation import rootfs
from gpu_selftest.isolation import task_bundle as bundle
from gpu_selftest.isolation.rootfs import Mount
from gpu_selftest.starvation_clock import StarvedError
from machine import exhaustion as scarcity
from machine import files, process
from machine import polling as waiting
from machine import process_cleanup as leftovers
from machine.process import CommandError, Completed

_HOME: typing.Final = wrapper.RUN / "selftest"
_STATE: typing.Final = _HOME / "runc"
_BUNDLES: typing.Final = _HOME / "bundles"
_ROOTS: typing.Final = results.HOME / "roots"

# Time limits of runtime calls, in seconds. On create, NVIDIA's runtime initialises the driver if
# nothing keeps it running, about a second for each GPU.
_CREATE: typing.Final = 40.0
_CALL: typing.Final = 20.0

# The user ids of this machine: all 32 bits of them, except in a user namespace
# (user_namespaces(7)).
USERS: typing.Final = pathlib.Path("/proc/self/uid_map")

_PROBE: typing.Final = pathlib.Path(__file__).with_name("probe.py")
_MODULES: typing.Final = ("ctypes", "glob", "json", "os", "signal", "stat", "time")
_WAIT: typing.Final = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""
_FOLDERS: typing.Final = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
)


class ContainerError(Exception):
    """A container, or a process in it, could not be made; the text is the runtime's message.

    Attributes:
        code: the code of a refusal of the GPU runtime (gpu_runtime.refusal); or empty.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


# Errors that may be ignored at the end of a container: the next holder looks again.
_UNFINISHED: typing.Final = (ContainerError, StarvedError)


def missing(runc: str) -> str:
    """Return the first missing file that a task's container needs here, with this runc."""
    needed = (str(wrapper.FRONT), runc, wrapper.PYTHON, str(wrapper.POLICY))
    return next((path for path in needed if not os.access(path, os.R_OK)), "")


@dataclasses.dataclass(frozen=True)
class Step:
    """The description of a container.

    Attributes:
        folder: the name of the folder that it works in, which tells the kind of step: a task's,
            or one of TaskFolders.others.
        image_env: the image's variables, such as `NAME=value`, before the CI system's own.
        params: the task author's variables, after them.
        annotations: in addition to the CI system's own.
        mounts: what it gets of this machine in addition to Python and the probe.
    """

    folder: str = bundle.TASK
    image_env: collections.abc.Sequence[str] = ()
    params: collections.abc.Sequence[str] = ()
    annotations: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict[str, str]
    )
    mounts: collections.abc.Sequence[Mount] = ()


class Container:
    """A running container. `exec` starts processes in it, `remove` removes all of it.

    Attributes:
        id: its id for the runtimes and for its lease.
    """

    def __init__(self, name: str, runc: str, folder: str, environment: list[str]) -> None:
        self.id = name
        self._folder = folder
        self._environment = environment
        # The GPU runtime first, as for a CI system's worker, then the programs beside runc.
        self._path = ":".join([str(wrapper.BIN), str(pathlib.Path(runc).parent), *_FOLDERS])
        self._bundle = _BUNDLES / name

    def __enter__(self) -> "Container":
        """Return the container, which runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Remove it.

        Raises:
            StarvedError: its end was not seen, and no other error ends this context.
        """
        left = self.remove()
        if left and fault is None:
            raise StarvedError(left)

    def create(self, config: dict[str, typing.Any], timeout: float) -> None:
        """Make and start it. If that fails half-way, `remove` cleans up.

        Raises:
            ContainerError: the GPU runtime or runc refused it.
            StarvedError: the machine has no time or room for it.
        """
        # As containerd has them: hooks read the file as the container's root.
        files.ensure_directory(self._bundle, mode=0o711)
        files.ensure_file(self._bundle / "config.json", json.dumps(config), mode=0o644)
        words = ("--bundle", self._bundle, "--pid-file", self._bundle / "init.pid")
        self._call("create", *words, "--no-new-keyring", self.id, timeout=timeout)
        self._call("start", self.id)

    def exec(
        self,
        argv: collections.abc.Sequence[str],
        *,
        timeout: float,
        exec_id: str = "task",
    ) -> Completed:
        """Run a process in it to its end, with the container's variables.

        Its output is in `output(exec_id)` while it runs.

        Args:
            argv: the program's absolute path in the container, and its arguments.
            timeout: in seconds; then it is killed.
            exec_id: `task` for a task's step, a UUID for a hijacked session.

        Raises:
            ContainerError: the runtime refused it.
            StarvedError: it ran out of time or was killed, as by the kernel when memory runs out.
        """
        pid = self.begin(argv, exec_id=exec_id)
        try:
            status = process.wait(pid, timeout)
            if status is None:
                leftovers.end_processes([pid], grace=0)
                process.wait(pid, _CALL)
        except (ProcessLookupError, ChildProcessError) as error:
            raise ContainerError(f"{argv[0]} ended unseen: {error}") from error
        files.ensure_absent(self._bundle / f"{exec_id}.pid")
        said = [self.output(exec_id, name).read_text(errors="replace") for name in _STREAMS]
        if status is None:
            last = f": {said[1].strip()}" if said[1].strip() else ""
            raise StarvedError(f"no end of {' '.join(argv)} within {timeout:g} s{last}")
        if status == -signal.SIGKILL or (status and scarcity.is_told_by(said[1])):
            raise StarvedError(str(CommandError(argv, status, said[1])))
        return Completed(status, *said)

    def begin(self, argv: collections.abc.Sequence[str], *, exec_id: str = "task") -> int:
        """Start a process in it and return its id; see exec.

        Raises:
            ContainerError: the runtime refused it.
            StarvedError: the machine has no time or room for it.
        """
        variables = [*self._environment, "USER=root"]
        described = bundle.process(argv, variables, self._folder)
        path = self._bundle / f"{exec_id}.json"
        files.ensure_file(path, json.dumps(described), mode=0o600)
        pid_file = self._bundle / f"{exec_id}.pid"
        stdout, stderr = (self.output(exec_id, name) for name in _STREAMS)
        words = ("--process", path, "--detach", "--pid-file", pid_file, self.id)
        self._call("exec", *words, stdout=stdout, stderr=stderr)
        return int(pid_file.read_text())

    def output(self, exec_id: str, stream: str = "stdout") -> pathlib.Path:
        """Return the file with the output of a process."""
        return self._bundle / f"{exec_id}.{stream}"

    def remove(self) -> str:
        """Kill it and remove everything of it, also what a failed `create` left.

        Returns:
            Why its end was not seen; empty if it was.
        """
        with contextlib.suppress(*_UNFINISHED):
            self._call("kill", self.id, "9")
        left = self._reap()
        for flags in ((), ("--force",)):
            with contextlib.suppress(*_UNFINISHED):
                self._call("delete", *flags, self.id)
                break
        _forget(self.id)
        return left

    def _reap(self) -> str:
        """Wait for the end of its first process, which comes when all others are reaped.

        Returns:
            Why that was not seen; empty if it was.
        """
        pid_file = files.read_text(self._bundle / "init.pid")
        init = int(pid_file) if pid_file else 0
        untold = None

        def is_reaped() -> bool:
            nonlocal untold
            untold = process.reap_orphans(init)
            return process.wait(init, 0.02) is not None

        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if init and not waiting.until(is_reaped, _CALL, every=0):
                why = f": {untold.filename}: {untold.strerror}" if untold else ""
                left = f"container {self.id} (pid {init}) has not ended"
                return f"{left} {_CALL:g} s after it was killed{why}"
        return ""

    def _call(
        self,
        *words: str | pathlib.Path,
        timeout: float = _CALL,
        stdout: pathlib.Path | None = None,
        stderr: pathlib.Path | None = None,
    ) -> None:
        log = self._bundle / "log.json"
        files.ensure_absent(log)
        flags = ("--root", _STATE, "--log", log, "--log-format", "json")
        outputs = {"stdout": stdout, "stderr": stderr}
        try:
            status = process.run_detaching(
                [str(wrapper.FRONT), *map(str, (*flags, *words))],
                timeout=timeout,
                env={"PATH": self._path},
                **{name: path for name, path in outputs.items() if path},
            )
        except CommandError as error:
            said, code = _said(log)
            raise _refused(said or str(error), code, starved=error.starved) from error
        if status:
            said, code = _said(log)
            said = said or f"{wrapper.FRONT} {words[0]} failed with {status} and no output"
            raise _refused(said, code, starved=status == -signal.SIGKILL)


_STREAMS: typing.Final = ("stdout", "stderr")


class Containers:
    """The containers of a self-test; leaving this context removes all that is left of them.

    Entering it removes what an earlier, killed self-test left. Several threads may make containers
    at once.
    """

    def __init__(self, runc: str, tasks: TaskFolders) -> None:
        """Args: runc: the path of the one that makes them. tasks: how a task's is known."""
        self._runc, self._tasks = runc, tasks
        self._python: tuple[Mount, ...] = ()
        self._highest_id = 0

    def __enter__(self) -> "Containers":
        """Remove leftovers, and find out what the interpreter needs.

        Raises:
            ContainerError: the interpreter does not run.
            StarvedError: the machine has no time or room for it.
        """
        process.adopt_orphans()
        _sweep(self._runc)
        try:
            self._python = rootfs.interpreter(modules=_MODULES)
        except CommandError as error:
            raise _refused(str(error), starved=error.starved) from error
        self._highest_id = _highest_id()
        for folder in (_STATE, _BUNDLES, _ROOTS):
            files.ensure_directory(folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Remove all that is left."""
        _sweep(self._runc)

    def create(
        self,
        name: str,
        step: Step = Step(),
        *,
        timeout: float = _CREATE,
    ) -> Container:
        """Start a container; `with` removes it at the end.

        Args:
            name: its id, which must be unused.
            step: its description.
            timeout: the limit for its creation, including a wait for GPUs, in seconds.

        Raises:
            ContainerError: the GPU runtime or runc refused it.
            StarvedError: the machine has no time or room for it.
        """
        environment = bundle.variables(step.image_env, step.params)
        folder = f"{self._tasks.parent}{step.folder}"
        made = Container(name, self._runc, folder, environment)
        try:
            root, work = self._folders(name)
            mounts = [*self._python, Mount(work, folder, ("bind", "rw")), *step.mounts]
            init = bundle.process([wrapper.PYTHON, "-I", "-S", "-c", _WAIT], environment)
            group = f"{threading.get_native_id()}/{name}"
            config = bundle.config(group, root, init, mounts, step.annotations, self._highest_id)
            made.create(config, timeout)
        except OSError as error:
            made.remove()
            raise _refused(str(error), starved=scarcity.is_told_by(error)) from error
        except BaseException:
            made.remove()
            raise
        return made

    def _folders(self, name: str) -> tuple[str, str]:
        """Make a container's root and its working folder."""
        root, work = _ROOTS / name / "rootfs", _ROOTS / name / "work"
        rootfs.make(root, {_PROBE.name: _PROBE.read_text()}, self._highest_id)
        files.ensure_directory(work)
        files.hand_over(work, self._highest_id)
        return str(root), str(work)


def _refused(words: str, code: str = "", *, starved: bool) -> ContainerError | StarvedError:
    """Return the error for a refusal; the message may show that the machine is starved."""
    if starved or scarcity.is_told_by(words):
        return StarvedError(words)
    return ContainerError(words, code)


def _sweep(runc: str) -> None:
    """Remove all containers of self-tests and everything that belongs to them."""
    names = {path.name for folder in (_STATE, _BUNDLES, _ROOTS) for path in _entries(folder)}
    for name in names:
        command = [runc, "--root", str(_STATE), "delete", "--force", name]
        with contextlib.suppress(CommandError):
            process.run_detaching(command, timeout=_CALL)
    ours = "|".join(map(re.escape, names))
    leftovers.remove_control_groups(rf"^/{bundle.CGROUP}(/[0-9]+)?(/({ours})(/.*)?)?$")
    for name in names:
        _forget(name)
    for folder in (_HOME, _ROOTS):
        files.ensure_absent(folder)


def is_nested(users: pathlib.Path = USERS) -> bool:
    """Return whether this machine is a container with its own user namespace, as LXD's are."""
    return users.read_text().split() != ["0", "0", "4294967295"]


def _highest_id(users: pathlib.Path = USERS) -> int:
    """Return the highest user id here, which is root in a task's container."""
    lines = users.read_text().splitlines()
    return max(int(first) + int(count) - 1 for first, _, count in map(str.split, lines))


def _forget(name: str) -> None:
    """Remove a container's files and its lease."""
    # If this fails, the next request for the GPU takes it.
    with contextlib.suppress(OSError, Refused):
        broker.do_without(Store(str(wrapper.STORE)), Host(), name)
    for folder in (_BUNDLES, _ROOTS):
        files.ensure_absent(folder / name)


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return [*folder.iterdir()] if folder.is_dir() else []


def _said(log: pathlib.Path) -> tuple[str, str]:
    """Return the last error in a runtime's log, as the shim does, and the GPU runtime's code."""
    last = "", ""
    for line in (files.read_text(log) or "").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            if entry["level"] == "error":
                last = str(entry["msg"]), str(entry.get("code", ""))
    return last
