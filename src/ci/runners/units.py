# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The systemd unit of a runner: a user of its own, its GPUs and no others, a folder of its own.

systemd makes the user when the unit begins (systemd.exec(5), DynamicUser=). The user cannot become
another one, and can write to the folder, to its own /tmp and to no other place. When the runner's
program ends, systemd ends all processes of the unit.

The unit lies in a slice of its own, which holds the lease and has the limits. If the job may have
containers, the machine's engine makes them in that slice, so they count as the job's, and end with
it.
"""

import collections.abc
import contextlib
import dataclasses
import grp
import json
import os
import pathlib
import re
import sys
import typing

from ci.runners import containers, gpu_check
from ci.runners.containers import engine as engines
from ci.runners.gpu_check import Checked
from ci.runners.settings import RUN, Limits
from gpu_agent import device_rules, paths
from gpu_agent import install as app
from gpu_agent.gpu_run import service as gpu_run
from gpu_runtime import cgroups, proc
from gpu_runtime.lease_table import RUNNER_USERS, RUNNERS
from gpu_runtime.signals import Process
from machine import files, process
from machine import systemd as services
from machine import systemd_escaping as escaping

_ALL: typing.Final = RUNNERS.removeprefix("/")  # the slice of all runners
_UNIT: typing.Final = RUNNER_USERS + "{}.service"
_SLICE: typing.Final = "gpucirunner-{}.slice"
_NAME: typing.Final = re.compile(
    rf"{RUNNER_USERS}([a-z0-9]+)\.service|gpucirunner-([a-z0-9]+)\.slice"
)
HOMES: typing.Final = pathlib.Path("/var/lib/gpu-ci-runners")
"""The folders of runners; each is a link to one that systemd keeps."""

PRIVATE: typing.Final = pathlib.Path("/var/lib/private")
"""Where systemd keeps the folders of such users."""

DOOR: typing.Final = pathlib.Path("/run/gpu-ci-engine")
"""Where a job finds its engine's socket."""

_DOOR_SOCKET: typing.Final = "docker.sock"
DOOR_VARIABLES: typing.Final = {"DOCKER_HOST": f"unix://{DOOR / _DOOR_SOCKET}"}
"""The variables by which programs find it."""

_DOOR_UNIT: typing.Final = "gpu-ci-engine-{}"
_ENGINE: typing.Final = "engine"  # the file with the path of the engine's own socket
# It speaks with the engine as root, and can do nothing else.
_DOOR_PROPERTIES: typing.Final = (
    *(f"Slice={_ALL}", "CapabilityBoundingSet=", "NoNewPrivileges=yes", "ProtectSystem=strict"),
    *("ProtectHome=yes", "PrivateDevices=yes", "PrivateNetwork=yes", "PrivateTmp=yes"),
    *("RestrictAddressFamilies=AF_UNIX", "RestrictNamespaces=yes", "MemoryMax=512M"),
    *("TasksMax=64", "TimeoutStopSec=10"),
)
_TEMPORARY: typing.Final = (pathlib.Path("/tmp"), pathlib.Path("/var/tmp"))  # noqa: S108
_DU: typing.Final = "/usr/bin/du"
_RM: typing.Final = ("/usr/bin/rm", "--recursive", "--force", "--one-file-system")
_SYSTEMD_RUN: typing.Final = "/usr/bin/systemd-run"
_SYSTEMCTL: typing.Final = "/usr/bin/systemctl"
_JOURNALCTL: typing.Final = "/usr/bin/journalctl"
_BUSCTL: typing.Final = "/usr/bin/busctl"
_FIND: typing.Final = "/usr/bin/find"
# The manager of systemd, its method and the types of that (org.freedesktop.systemd1(5)).
_START: typing.Final = (
    *("org.freedesktop.systemd1", "/org/freedesktop/systemd1"),
    *("org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"),
)
# Seconds: for systemd under load; for a check, whose NVML starts in some; for the end of a unit.
_TIMEOUT: typing.Final = 30.0
_CHECK: typing.Final = 45.0
_LAST: typing.Final = 10
# And to count a folder of millions of files, and to remove a part of it.
_COUNT: typing.Final = 20.0
_CLEAR: typing.Final = 5.0
# Lines of a runner's own log that are read; a runner for one job writes some ten.
_LINES: typing.Final = 200
# Groups of people who may use GPUs, where a machine has them.
_GROUPS: typing.Final = ("video", "render")
# What only the agent, the charm and Juju may see.
_HIDDEN: typing.Final = (
    "/etc/gpu-ci", "/run/gpu-ci", "/var/lib/gpu-ci", "/var/log/gpu-ci", str(RUN),
    str(gpu_run.PATH), "/var/lib/juju", "/var/log/juju",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What a runner and its job may use.

    Attributes:
        nodes: the device nodes that its unit may open.
        limits: of all its processes, with those in containers of its job.
        engine: the engine whose containers its job may have; empty: none.
        runtime: the runtime of these containers; empty: the job's choice.
    """

    nodes: list[str]
    limits: Limits = Limits()
    engine: str = ""
    runtime: str = ""


class Unit:
    """The unit of one runner.

    Attributes:
        name: the runner's name on this machine: lower-case letters and digits.
        unit: the unit's name.
        slice: its slice, which has the lease.
        group: the slice's control group.
        home: the folder in which its jobs run.
        files: the folder in which its program finds its secret, once it runs.
    """

    def __init__(self, name: str) -> None:
        self.name, self.unit, self.slice = name, _UNIT.format(name), _SLICE.format(name)
        self.group = f"{RUNNERS}/{self.slice}"
        self.home = HOMES / name
        self.files = pathlib.Path("/run/credentials") / self.unit
        self._staged = RUN / "begins" / name
        self._door, self._door_unit = RUN / "engines" / name, _DOOR_UNIT.format(name)

    def check(self, gpus: tuple[str, ...], vendor: str, nodes: list[str], engine: str) -> Checked:
        """Check GPUs as the runner's user, in a unit with the rules of the runner's.

        Args:
            gpus: their ids.
            vendor: the name of their vendor.
            nodes: the device nodes that the runner may open.
            engine: the engine whose containers its job may have; empty: none.

        Raises:
            OSError: the engine does not listen.
            machine.process.CommandError: the unit cannot be started, or the check fails.
            ValueError: the check answers something else.
        """
        if engine:
            engines.check(engine)
        asked = json.dumps([vendor, [*gpus], nodes, device_rules.others(nodes)])
        command = [
            *(_SYSTEMD_RUN, "--quiet", "--wait", "--pipe", "--collect", f"--unit={self.unit}"),
            *("--description=Checks the GPUs of a CI runner", *self._properties(nodes, _ALL)),
            f"--setenv=PYTHONPATH={':'.join(path for path in sys.path if path.startswith('/'))}",
            *("--", sys.executable, "-B", "-m", gpu_check.__name__),
        ]
        try:
            done = process.run(command, timeout=_CHECK, stdin=asked, told=False)
        except process.CommandError:
            self.kill()
            raise
        return gpu_check.parse(done.stdout)

    def begin(
        self,
        command: collections.abc.Sequence[str],
        secret: collections.abc.Mapping[str, str],
        environment: collections.abc.Mapping[str, str],
        allowed: Allowed,
    ) -> None:
        """Start the runner.

        Args:
            command: its program, with arguments.
            secret: what the program finds in `files`, by name.
            environment: its variables, which its job gets too.
            allowed: what it may use.

        Raises:
            machine.process.CommandError: it cannot be started.
            OSError: its files cannot be written, or the engine does not listen.
        """
        self._begin_slice(allowed.limits)
        if allowed.engine:
            self._open_door(allowed.engine, allowed.runtime)
        files.ensure_directory(self._staged.parent, mode=0o700)
        files.ensure_directory(self._staged, mode=0o700)
        variables = self._staged / "environment"
        lines = [
            f"{key}={escaping.environment_value(text)}\n" for key, text in environment.items()
        ]
        try:
            files.ensure_file(variables, "".join(lines), mode=0o600)
            for name, text in secret.items():
                files.ensure_file(self._staged / name, text, mode=0o600)
            process.run(
                [
                    *(_SYSTEMD_RUN, "--quiet", "--collect", f"--unit={self.unit}"),
                    *("--description=A CI runner for one job", "--property=Type=exec"),
                    *self._properties(allowed.nodes, self.slice),
                    *([f"--property=BindPaths={self._door}:{DOOR}"] if allowed.engine else ()),
                    *(
                        f"--property=LoadCredential={name}:{self._staged / name}"
                        for name in secret
                    ),
                    f"--property=EnvironmentFile={variables}",
                    *("--", *command),
                ],
                timeout=_TIMEOUT,
            )
        finally:
            files.ensure_absent(self._staged)

    def _begin_slice(self, limits: Limits) -> None:
        most = [("TasksMax", limits.tasks)] if limits.tasks else []
        if limits.memory:
            most += [("MemoryMax", limits.memory << 20), ("MemorySwapMax", 0)]
        words = [word for name, value in most for word in (name, "t", str(value))]
        call = [_BUSCTL, "--quiet", "call", *_START, self.slice, "fail", str(len(most)), *words]
        process.run([*call, "0"], timeout=_TIMEOUT)

    def _open_door(self, engine: str, runtime: str) -> None:
        """Have the engine's socket for this job."""
        listens = engines.check(engine)
        files.ensure_directory(self._door.parent, mode=0o700)
        # The folder above is closed to users. In the runner's unit this one is elsewhere.
        files.ensure_directory(self._door)
        files.ensure_file(self._door / _ENGINE, listens)
        home = app.HOME / app.CURRENT
        # Engines leave empty control groups, in hierarchies that systemd does not use.
        sweep = f"{_FIND} /sys/fs/cgroup -depth -type d -path */{self.slice}* -delete"
        process.run(
            [
                *(_SYSTEMD_RUN, "--quiet", "--collect", f"--unit={self._door_unit}"),
                "--description=The container engine of a CI runner's job",
                f"--socket-property=ListenStream={self._door / _DOOR_SOCKET}",
                "--socket-property=SocketMode=0666",
                *(f"--property={value}" for value in _DOOR_PROPERTIES),
                f"--property=ExecStopPost=-{sweep}",
                f"--setenv=PYTHONPATH={home}/lib:{home}/src:{home}/venv",
                *("--", paths.PYTHON, "-B", "-m", containers.__name__),
                *(listens, self.name, self.slice, self.group, runtime),
            ],
            timeout=_TIMEOUT,
        )

    def log(self) -> str:
        """Return the last lines of what its program has written itself; jobs write elsewhere.

        Raises:
            machine.process.CommandError: the journal cannot be read.
        """
        argv = [_JOURNALCTL, "--quiet", "--output=cat", f"--lines={_LINES}", f"--unit={self.unit}"]
        return process.run(argv, timeout=_TIMEOUT, told=False).stdout

    def processes(self) -> int:
        """Return the number of its processes, and of those in containers of its job.

        Raises:
            OSError: its control group cannot be read.
        """
        return len(self._pids())

    def _pids(self) -> set[int]:
        top = cgroups.folder("", self.group)
        folders = [folder for folder, _, _ in os.walk(top)] if top else []
        said = " ".join(proc.read(f"{folder}/cgroup.procs") for folder in folders)
        return set(map(int, said.split()))

    def disk(self) -> int | None:
        """Return what its folder and its /tmp take on the disk, in MiB; None: not known in time.

        Raises:
            machine.process.CommandError: they cannot be read.
        """
        private = f"systemd-private-*-{self.unit}-*"
        temporary = [path for top in _TEMPORARY for path in top.glob(private)]
        home = [path for path in (PRIVATE / HOMES.name / self.name,) if path.exists()]
        argv = [_DU, "--summarize", "--one-file-system", "--total", "--block-size=1M"]
        # A job may remove files meanwhile, of which du complains.
        done = process.run(
            [*argv, "--", *map(str, [*home, *temporary])], timeout=_COUNT, check=False, told=False
        )
        total = re.search(r"^([0-9]+)\ttotal$", done.stdout, re.MULTILINE)
        return int(total.group(1)) if total else None

    def end_job(self) -> None:
        """Kill the processes of its job; its program reports that they have failed.

        Raises:
            OSError: its control group cannot be read.
        """
        main = services.main_pid(self.unit)
        for pid in self._pids() - {main}:
            with contextlib.suppress(ProcessLookupError):
                found = Process(pid)
                # It may have been another one's number until it was taken hold of.
                if pid in self._pids():
                    found.kill()
                found.close()

    def ask_to_end(self) -> None:
        """Let its program take no job; it ends at once, or with its running job."""
        services.signal(self.unit, "SIGTERM")

    def kill(self) -> None:
        """End all its processes now.

        Raises:
            machine.process.CommandError: systemd cannot do it.
        """
        kill = [_SYSTEMCTL, "kill", "--signal=SIGKILL", "--", self.unit]
        process.run(kill, timeout=_TIMEOUT, check=False, told=False)
        process.run([_SYSTEMCTL, "stop", "--", self.unit], timeout=_TIMEOUT, check=False)

    def clear(self) -> None:
        """Remove its files and what its job has made in the engine, once its unit is gone.

        Raises:
            OSError, machine.process.CommandError: they cannot be removed, or not in this time:
                then the next call goes on.
        """
        files.ensure_absent(self.home)  # a link
        files.ensure_absent(self._staged)
        folder = PRIVATE / HOMES.name / self.name
        if folder.exists():
            # A job can make folders so deep that Python cannot remove them.
            process.run([*_RM, "--", str(folder)], timeout=_CLEAR, told=False)
        stopped = [self.slice]
        listens = files.read_text(self._door / _ENGINE)
        if listens:
            engines.clear(listens, self.name)
            stopped += [f"{self._door_unit}.socket", f"{self._door_unit}.service"]
        process.run(
            [_SYSTEMCTL, "stop", "--", *stopped], timeout=_TIMEOUT, check=False, told=False
        )
        # Last: `left` finds by it what a failed call has not removed.
        files.ensure_absent(self._door)

    def _properties(self, nodes: list[str], slice_: str) -> list[str]:
        groups = [name for name in _GROUPS if _has_group(name)]
        values = [
            *(f"Slice={slice_}", "DynamicUser=yes", f"SupplementaryGroups={' '.join(groups)}"),
            *device_rules.properties(nodes),
            f"StateDirectory={HOMES.name}/{self.name}",
            *("StateDirectoryMode=0700", f"WorkingDirectory={self.home}"),
            "TasksMax=infinity",
            # A step that has too little memory fails, and its runner reports that.
            "OOMPolicy=continue",
            f"TimeoutStopSec={_LAST}",
            *("ProtectProc=invisible", "LimitCORE=0", "KeyringMode=private"),
            f"InaccessiblePaths={' '.join(f'-{path}' for path in _HIDDEN)}",
        ]
        return [*(f"--property={value}" for value in values), f"--setenv=HOME={self.home}"]


class Units:
    """The units of the runners on this machine."""

    def unit(self, name: str) -> Unit:
        """Return the unit of a runner."""
        return Unit(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of the runners whose units systemd knows.

        Raises:
            machine.process.CommandError: systemd does not answer.
        """
        return tuple(filter(None, map(name_of, services.units(_UNIT.format("*")))))

    def left(self) -> tuple[str, ...]:
        """Return the names of the runners that have left something on the disk.

        Raises:
            OSError: the folders cannot be read.
        """
        folders = (HOMES, PRIVATE / HOMES.name, RUN / "begins", RUN / "engines")
        return tuple({entry.name for folder in folders for entry in files.entries(folder)})


def name_of(unit: str) -> str:
    """Return the runner's name in the name of its unit or slice; empty if it is another's."""
    match = _NAME.fullmatch(unit)
    return match.group(1) or match.group(2) if match else ""


def _has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True
