# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run disposable systemd machines: systemd-nspawn over an overlay of the host's own root."""

import json
import pathlib
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence

from tests.lab import cgroups, network, processes
from tests.lab.errors import CommandError, MachineError

KEEPER = str(pathlib.Path(__file__).with_name("keeper.py"))
NSENTER = "/usr/bin/nsenter"
CLEAN_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
BOOT_SECONDS = 60.0
STOP_SECONDS = 30.0
KILL_SECONDS = 5.0
# As in timeout(1).
TIMED_OUT = 124


class Machine:
    """One machine: a directory of the lab, and while it is up a keeper process.

    Args:
        directory: its place in the lab's state directory; the last part is its name.
        net: the lab's network.
    """

    def __init__(self, directory: pathlib.Path, net: network.Network):
        self.directory = directory
        self.name = directory.name
        self._network = net

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return str(self.settings()["address"])

    def settings(self) -> dict:
        """What the machine was made with: address, cgroups, binds."""
        return json.loads((self.directory / "settings.json").read_text())

    def is_up(self) -> bool:
        """Whether it runs (or boots, or reboots just now)."""
        return bool(self._keepers())

    def leader(self) -> int:
        """The machine's PID 1, as the host numbers it.

        Raises:
            MachineError: the machine is down.
        """
        for keeper in self._keepers():
            for nspawn in processes.children(keeper):
                for pid in processes.children(nspawn):
                    if processes.is_alive(pid):
                        return pid
        raise MachineError(f"machine {self.name} is down")

    def up(self, timeout: float = BOOT_SECONDS) -> None:
        """Boot it, where it is not up already, and wait until its systemd has started all.

        Raises:
            MachineError: it ended or did not finish in `timeout` seconds; with its log's end.
        """
        if not self.is_up():
            self._start()
        self.wait_up(timeout)

    def _start(self) -> None:
        shutil.rmtree(self.directory / "work", ignore_errors=True)
        for part in ("work", "root"):
            (self.directory / part).mkdir(exist_ok=True)
        self._update(cgroups=[str(d) for d in cgroups.make(self._cgroup_name())])
        keeper = [
            "/usr/bin/unshare", "-m", "/usr/bin/python3", "-I", KEEPER, str(self.directory),
        ]  # fmt: skip
        with open(self.directory / "log", "wb") as log:
            # A session of its own: machines outlive the command that started them, and its Ctrl-C.
            subprocess.run(
                ["/usr/bin/setsid", "--fork", *self._network.inside(keeper)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=CLEAN_ENV,
                check=True,
                timeout=30,
            )

    def _cgroup_name(self) -> str:
        return f"{self._network.name}-{self.name}"

    def _update(self, **changes: object) -> None:
        path = self.directory / "settings.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps({**self.settings(), **changes}))
        new.replace(path)

    def wait_up(self, timeout: float = BOOT_SECONDS, not_leader: int = 0) -> None:
        """Wait until the machine has booted.

        Args:
            timeout: in seconds.
            not_leader: the PID 1 of the boot before, while the machine reboots.

        Raises:
            MachineError: as `up` does.
        """
        deadline = time.monotonic() + timeout
        state, pause = "starting", 0.05
        while state not in ("running", "degraded"):
            time.sleep(pause)
            # To look costs as much as to boot where it takes long.
            pause = min(1.1 * pause, 0.5)
            # A machine that starts has a keeper from the first moment on.
            if not self.is_up() or time.monotonic() > deadline:
                log = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise MachineError(f"machine {self.name} did not come up ({state}):\n{log}")
            state = self._boot_state(not_leader)
        if not cgroups.is_unified():
            self._give_cgroups()

    def _boot_state(self, not_leader: int) -> str:
        try:
            if self.leader() == not_leader:
                return "rebooting"
            asked = self.enter("/bin/systemctl", "is-system-running", check=False)
        except MachineError:
            return "starting"
        return asked.stdout.strip()

    def _give_cgroups(self) -> None:
        # nspawn mounts the v1 controllers read-only: limits and device rules would silently not
        # be applied. systemd looks at them only when it starts.
        for controller in cgroups.V1_CONTROLLERS:
            path = f"/sys/fs/cgroup/{controller}"
            self.enter("/bin/mount", "-o", "remount,bind,rw", path, check=False)
        self.enter("/bin/systemctl", "daemon-reexec")

    def enter(
        self,
        *argv: str,
        stdin: bytes | str | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine's namespaces, but in the caller's cgroup: quick, for looks.

        Raises:
            MachineError: the machine is down.
            CommandError: exit status other than 0 (with `check`), or `timeout` seconds are over.
        """
        return self._call([*self.enter_command(), *argv], argv, stdin, timeout, check)

    def enter_command(self, **more_env: str) -> list[str]:
        """The beginning of a command line for whatever has to run in the machine's namespaces."""
        env = [f"{key}={value}" for key, value in {**CLEAN_ENV, **more_env}.items()]
        return [NSENTER, "-t", str(self.leader()), "-a", "--", "/usr/bin/env", "-i", *env]

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float = 120,
        check: bool = True,
        unit: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a unit under the machine's PID 1, as one of its own services.

        Args:
            argv: absolute path of the program, and its arguments.
            env: the command's whole environment; the machine's usual one when None.
            stdin: what it reads.
            timeout: seconds until it and all that it started are killed.
            check: whether exit statuses other than 0 raise.
            unit: the unit's name, for `kill_unit`; made up when empty.

        Raises:
            MachineError: the machine is down.
            CommandError: as `enter`.
        """
        unit = unit or f"lab-run-{uuid.uuid4().hex[:8]}"
        pairs = [f"{key}={value}" for key, value in (CLEAN_ENV if env is None else env).items()]
        command = [
            *self.enter_command(),
            "/usr/bin/systemd-run", "--quiet", "--wait", "--pipe", "--collect", f"--unit={unit}",
            # What a command leaves behind stays, as it would under a real agent.
            "--property=KillMode=process",
            "--", "/usr/bin/env", "-i", *pairs, *argv,
        ]  # fmt: skip
        try:
            return self._call(command, argv, stdin, timeout, check)
        except (CommandError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) or error.returncode == TIMED_OUT:
                self.kill_unit(unit)
            raise

    def kill_unit(self, unit: str) -> None:
        """SIGKILL every process of a unit; nothing where it is not there."""
        kill = ("/bin/systemctl", "kill", "--kill-who=all", "--signal=KILL", f"{unit}.service")
        self.enter(*kill, check=False)

    def _call(
        self,
        command: Sequence[str],
        shown: Sequence[str],
        stdin: bytes | str | None,
        timeout: float,
        check: bool,
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        what = f"{self.name}: {' '.join(' '.join(shown).split())[:100]}"
        source = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        try:
            done = subprocess.run(
                command,
                check=False,
                capture_output=True,
                timeout=timeout,
                env=CLEAN_ENV,
                # A Ctrl-C is the caller's to handle: it must not end systemd-run under the unit.
                start_new_session=True,
                **source,
            )
        except subprocess.TimeoutExpired as error:
            seen = b"".join(part for part in (error.stdout, error.stderr) if part)
            text = f"{what}: not done after {timeout:.0f} s"
            raise CommandError(text, TIMED_OUT, seen.decode(errors="replace")) from error
        result = subprocess.CompletedProcess(
            list(shown),
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )
        if check and done.returncode:
            output = result.stdout + result.stderr
            text = f"{what}: exit status {done.returncode}: {output[-1500:].strip()}"
            raise CommandError(text, done.returncode, output)
        return result

    def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Write a file in the machine, atomically, and the directories above it."""
        script = (
            'umask 077; mkdir -p -m 755 "${1%/*}" && cat >"$1.lab" && '
            'chmod "$2" "$1.lab" && mv "$1.lab" "$1"'
        )
        self.enter("/bin/sh", "-c", script, "sh", path, f"{mode:o}", stdin=data)

    def read(self, path: str) -> str:
        """A file's text.

        Raises:
            CommandError: there is no such file.
        """
        return self.enter("/bin/cat", path).stdout

    def reboot(self, timeout: float = BOOT_SECONDS) -> None:
        """Reboot and wait until it is up again."""
        before = self.leader()
        self.enter("/bin/systemctl", "reboot", check=False)
        self.wait_up(timeout, not_leader=before)

    def down(self, timeout: float = STOP_SECONDS) -> None:
        """Power off, by force after `timeout` seconds. A machine that is down stays so."""
        keepers = self._keepers()
        if keepers:
            try:
                self.enter("/bin/systemctl", "poweroff", check=False)
            except MachineError:
                pass  # It has not come up far enough for a PID 1: it is killed below.
            else:
                processes.wait_gone(keepers[0], timeout)
        self.kill()

    def kill(self) -> None:
        """Pull the plug, and take away what is left of it outside: processes and cgroups."""
        directories = [pathlib.Path(p) for p in self.settings()["cgroups"]]
        # Its PID 1 first: with it the kernel ends everything in the machine.
        for keeper in self._keepers():
            for nspawn in processes.children(keeper):
                for pid in processes.children(nspawn):
                    processes.kill(pid)
            # By itself it ends, and its mounts with it, once the machine is gone.
            processes.wait_gone(keeper, KILL_SECONDS)
        end_cgroups(directories)

    def _keepers(self) -> list[int]:
        return processes.find(KEEPER, str(self.directory))


def end_cgroups(directories: list[pathlib.Path]) -> None:
    """Kill all processes in the cgroups, then remove those.

    Raises:
        MachineError: some do not go.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while any(map(processes.is_alive, cgroups.processes(directories))):
        for pid in cgroups.processes(directories):
            processes.kill(pid)
        if time.monotonic() > deadline:
            raise MachineError(f"processes in {directories[0]} do not die")
        time.sleep(0.05)
    left = cgroups.remove(directories)
    if left:
        raise MachineError(f"cgroups stay: {', '.join(map(str, left))}")
