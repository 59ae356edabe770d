# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Containers of Concourse's shape, made by calling the wrapper as containerd's shim does.

So a test takes the way of every CI task, without containerd or Concourse: the calls, files and
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
from gpu_runtime.refusal import Refused
from gpu_selftest import results
from gpu_selftest.isolation import rootfs
from gpu_selftest.isolation import task_bundle as bundle
from gpu_selftest.isolation.rootfs import Mount
from gpu_selftest.isolation.task_bundle import Kind
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

# What the runtime may take, in seconds. To make a container the NVIDIA runtime starts the driver
# anew where nothing keeps it running, about a second for each GPU.
_CREATE: typing.Final = 40.0
_CALL: typing.Final = 20.0

# Which users there are here: all 32 bits of them but where there is a user namespace
# (user_namespaces(7)).
_USERS: typing.Final = pathlib.Path("/proc/self/uid_map")

_PROBE: typing.Final = pathlib.Path(__file__).with_name("probe.py")
_MODULES: typing.Final = ("ctypes", "glob", "json", "os", "signal", "stat", "time")
_WAIT: typing.Final = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    signal.pause()
"""
# The wrapper first, as our launcher has it, then Concourse's programs.
_FOLDERS: typing.Final = (
    *(str(wrapper.BIN), str(pathlib.Path(wrapper.RUNC).parent)),
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
)


class ContainerError(Exception):
    """A container or a process in it could not be made; the text is the runtime's own words."""


# What the end of a container may be told of: it is looked for again by whoever comes next.
_UNFINISHED: typing.Final = (ContainerError, StarvedError)


def missing() -> str:
    """The first file that a task's container needs on this worker and that is not there."""
    needed = (str(wrapper.FRONT), wrapper.RUNC, wrapper.PYTHON, str(wrapper.POLICY))
    return next((path for path in needed if not os.access(path, os.R_OK)), "")


@dataclasses.dataclass(frozen=True)
class Step:
    """What a container is to be.

    Attributes:
        kind: what Concourse would run in it.
        image_env: the image's variables, entries such as `NAME=value`, before Concourse's own.
        params: those of the task's author, after them.
        annotations: beside Concourse's own.
        mounts: what it gets of this machine beside Python and the probe.
    """

    kind: Kind = Kind.TASK
    image_env: collections.abc.Sequence[str] = ()
    params: collections.abc.Sequence[str] = ()
    annotations: collections.abc.Mapping[str, str] = dataclasses.field(
        default_factory=dict[str, str]
    )
    mounts: collections.abc.Sequence[Mount] = ()


class Container:
    """One container that runs. `exec` starts processes in it, `remove` leaves nothing of it.

    Attributes:
        id: by which the runtime, the wrapper and its leases know it.
    """

    def __init__(self, name: str, kind: Kind, environment: list[str]) -> None:
        self.id = name
        self._kind = kind
        self._environment = environment
        self._bundle = _BUNDLES / name

    def __enter__(self) -> "Container":
        """It runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        """Remove it.

        Raises:
            StarvedError: its end was not seen, and nothing else ends this context.
        """
        left = self.remove()
        if left and fault is None:
            raise StarvedError(left)

    def create(self, config: dict[str, typing.Any], timeout: float) -> None:
        """Make and start it; what fails half-way is for `remove`.

        Raises:
            ContainerError: the wrapper or the runtime refused it.
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

        What it says is in `output(exec_id)` while it runs.

        Args:
            argv: the program's absolute path in there, and its arguments.
            timeout: in seconds; then it is killed.
            exec_id: `task` for a task's step, a UUID for a hijacked session.

        Raises:
            ContainerError: it was refused.
            StarvedError: it ran out of time, or was killed, as the kernel does for want of memory.
        """
        pid = self.begin(argv, exec_id=exec_id)
        try:
            status = process.wait(pid, timeout)
            if status is None:
                leftovers.end_processes([pid], grace=0)
                process.wait(pid, _CALL)
        except (ProcessLookupError, ChildProcessError) as error:
            raise ContainerError(f"{argv[0]} ended out of sight: {error}") from error
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
            ContainerError: it was refused.
            StarvedError: the machine has no time or room for it.
        """
        variables = [*self._environment, "USER=root"]
        described = bundle.process(argv, variables, self._kind.value)
        path = self._bundle / f"{exec_id}.json"
        files.ensure_file(path, json.dumps(described), mode=0o600)
        pid_file = self._bundle / f"{exec_id}.pid"
        stdout, stderr = (self.output(exec_id, name) for name in _STREAMS)
        words = ("--process", path, "--detach", "--pid-file", pid_file, self.id)
        self._call("exec", *words, stdout=stdout, stderr=stderr)
        return int(pid_file.read_text())

    def output(self, exec_id: str, stream: str = "stdout") -> pathlib.Path:
        """The file that takes what a process writes to its stdout or stderr."""
        return self._bundle / f"{exec_id}.{stream}"

    def remove(self) -> str:
        """Kill it, and take away all there is of it: also what a failed `create` left.

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
                env={"PATH": ":".join(_FOLDERS)},
                **{name: path for name, path in outputs.items() if path},
            )
        except CommandError as error:
            raise _refused(_said(log) or str(error), starved=error.starved) from error
        if status:
            said = f"{wrapper.FRONT} {words[0]} failed with {status} and said nothing"
            raise _refused(_said(log) or said, starved=status == -signal.SIGKILL)


_STREAMS: typing.Final = ("stdout", "stderr")


class Containers:
    """The containers of a self-test; what is left of them goes with this context.

    What an earlier self-test left that was killed goes first. Several threads may make some at
    once.
    """

    def __init__(self) -> None:
        self._python: tuple[Mount, ...] = ()
        self._highest_id = 0

    def __enter__(self) -> "Containers":
        """Sweep, and see what the interpreter needs.

        Raises:
            ContainerError: it does not run.
            StarvedError: the machine has no time or room for it.
        """
        process.adopt_orphans()
        _sweep()
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
        """Take away all that is left."""
        _sweep()

    def create(
        self,
        name: str,
        step: Step = Step(),
        *,
        timeout: float = _CREATE,
    ) -> Container:
        """Start a container; `with` removes it in the end.

        Args:
            name: its id; one that nothing else has now.
            step: what it is to be.
            timeout: how long its making may take, a wait for GPUs included, in seconds.

        Raises:
            ContainerError: the wrapper or the runtime refused it.
            StarvedError: the machine has no time or room for it.
        """
        environment = bundle.variables(step.image_env, step.params)
        made = Container(name, step.kind, environment)
        try:
            root, work = self._folders(name)
            mounts = [*self._python, Mount(work, step.kind.value, ("bind", "rw")), *step.mounts]
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
        """Make a container's root and the folder that it works in."""
        root, work = _ROOTS / name / "rootfs", _ROOTS / name / "work"
        rootfs.make(root, {_PROBE.name: _PROBE.read_text()}, self._highest_id)
        files.ensure_directory(work)
        files.hand_over(work, self._highest_id)
        return str(root), str(work)


def _refused(words: str, *, starved: bool) -> ContainerError | StarvedError:
    """The error for what was not made; its words may tell that the machine is out of something."""
    if starved or scarcity.is_told_by(words):
        return StarvedError(words)
    return ContainerError(words)


def _sweep() -> None:
    """Take away whatever containers of a self-test there are, and all that belongs to them."""
    names = {path.name for folder in (_STATE, _BUNDLES, _ROOTS) for path in _entries(folder)}
    for name in names:
        command = [wrapper.RUNC, "--root", str(_STATE), "delete", "--force", name]
        with contextlib.suppress(CommandError):
            process.run_detaching(command, timeout=_CALL)
    ours = "|".join(map(re.escape, names))
    leftovers.remove_control_groups(rf"^/{bundle.CGROUP}(/[0-9]+)?(/({ours})(/.*)?)?$")
    for name in names:
        _forget(name)
    for folder in (_HOME, _ROOTS):
        files.ensure_absent(folder)


def is_nested() -> bool:
    """Whether this machine is a container with users of its own, as LXD's are."""
    return _USERS.read_text().split() != ["0", "0", "4294967295"]


def _highest_id() -> int:
    """The highest user id here, of which Concourse makes the root of its containers."""
    lines = _USERS.read_text().splitlines()
    return max(int(first) + int(count) - 1 for first, _, count in map(str.split, lines))


def _forget(name: str) -> None:
    """Remove a container's files and its lease."""
    # Where that fails, whoever wants the GPU next takes it.
    with contextlib.suppress(OSError, Refused):
        broker.do_without(Store(str(wrapper.STORE)), Host(), name)
    for folder in (_BUNDLES, _ROOTS):
        files.ensure_absent(folder / name)


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return [*folder.iterdir()] if folder.is_dir() else []


def _said(log: pathlib.Path) -> str:
    """The last error in a runtime's log, as the shim takes it from there."""
    last = ""
    for line in (files.read_text(log) or "").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            if entry["level"] == "error":
                last = str(entry["msg"])
    return last
