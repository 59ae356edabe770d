# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The real sh front, thousands of times: what it hands on, and what reaches the back end.

One shell runs them all. /usr/bin/true stands for the real runc and /usr/bin/false for Python, so
that a call's exit status tells where it went.
"""

import itertools
import pathlib
import random
import shlex
import subprocess

from gpu_agent import paths
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import TaskFolders
from machine import templates
from tests.unit.wrapper_rig import TASKS

HANDED_ON, BACK_END = 0, 1
VALUED = {
    "create": ["--console-socket", "-console-socket", "--pid-file", "--preserve-fds"],
    "run": ["--console-socket", "--pid-file", "-pid-file", "--preserve-fds"],
    "restore": ["--console-socket", "--pid-file"],
    "exec": ["--console-socket", "--pid-file", "-pid-file", "--process", "-process"],
}
# The front does not know these; where their values are no flags, that makes no difference.
UNKNOWN = {
    "create": ["--pidfd-socket"],
    "run": ["--pidfd-socket"],
    "restore": ["--image-path", "-work-path", "--lsm-profile", "--manage-cgroups-mode"],
    "exec": ["--cwd", "--env", "-e", "--user", "-u", "-p", "--additional-gids", "--cap", "-c"],
}
SWITCHES = {
    "create": ["--no-pivot", "--no-new-keyring", "-no-pivot=true"],
    "run": ["--detach", "-d", "--keep", "--no-subreaper", "--no-pivot=false"],
    "restore": ["--detach", "--tcp-established", "--auto-dedup", "-d"],
    "exec": ["--detach", "-d", "--tty", "-t", "--ignore-paused", "--no-new-privs=true"],
}
VALUES = ["x", "create", "exec", "", "known", "-", "a b", "'", "$(exit 7)", "*", "=", "\n", "/"]
DASHED = ["--bundle", "--", "-x", "--log=y", "-b=task"]
IDS = ["ID", "known", "get", "create", "-", "a b", "$HOME", ""]


class Fronts:
    """A front with a store that knows the container `known`, and a folder of bundles."""

    def __init__(self, folder: pathlib.Path, tasks: TaskFolders = TASKS) -> None:
        self.folder = folder
        self.store = folder / "leases"
        self.front = folder / "bin" / "runc"
        for path in (self.store / "containers", folder / "lib", self.front.parent):
            path.mkdir(parents=True)
        (self.store / "containers" / "known.json").write_text("{}")
        (folder / "lib" / "__main__.py").write_text("")
        text = templates.render(
            paths.TEMPLATES,
            "runc",
            runc="/usr/bin/true",
            tasks=install.pattern(tasks),
            python="/usr/bin/false",
            lib=folder / "lib",
            store=self.store,
            policy="/nowhere",
            bin=self.front.parent,
            log="/nowhere/oci.log",
        )
        self.front.write_text(text)
        self.front.chmod(0o755)

    def bundle(self, name: str, content: bytes) -> pathlib.Path:
        (self.folder / name).mkdir()
        (self.folder / name / "config.json").write_bytes(content)
        return self.folder / name

    def run(self, calls: list[tuple[str, list[str]]]) -> list[int]:
        """Call the front with each folder to be in and words; HANDED_ON or BACK_END each time."""
        lines = [
            f"cd {shlex.quote(str(self.folder / place))}\n"
            f"{self.front} {shlex.join(words)} </dev/null; echo $?"
            for place, words in calls
        ]
        done = subprocess.run(
            ["/bin/sh"],
            input="\n".join(lines),
            capture_output=True,
            check=True,
            timeout=600,
            text=True,
        )
        assert done.stderr == ""
        return [int(line) for line in done.stdout.splitlines()]


def words(chance: random.Random, bundles: list[str]) -> list[str]:
    """Arguments as runc takes them, in any of their forms, and some that it takes not."""
    command = chance.choice(["create", "create", "create", "exec", "exec", "run", "restore"])
    ahead = []
    for _ in range(chance.choice([0, 1, 3])):
        ahead += chance.choice([_global, _switch])(chance)
    after = [_flag(chance, command, bundles) for _ in range(chance.choice([0, 1, 2, 4]))]
    name = [chance.choice(IDS)]
    if chance.random() < 0.1:
        name = ["--", *name]
    place = chance.randrange(len(after) + 1) if chance.random() < 0.3 else len(after)
    if chance.random() < 0.1:
        ahead.append("--")
    after.insert(place, name)
    return [*ahead, command, *itertools.chain.from_iterable(after)]


def words_of_containerd(chance: random.Random, bundle: str, name: str) -> list[str]:
    """A call as containerd makes it (go-runc 1.1 runc.go)."""
    ahead = ["--root", "/r", "--log", "/dev/null", "--log-format", "json"]
    ahead += chance.choice([[], ["--systemd-cgroup"]])
    command = chance.choice(["create", "exec", "restore"])
    if command == "exec":
        flags = ["--process", "/p", *chance.choice([["--console-socket", "/s"], []])]
        return [*ahead, command, *flags, "--detach", "--pid-file", f"{bundle}/x.pid", name]
    flags = ["--bundle", bundle, "--pid-file", f"{bundle}/init.pid"]
    return [*ahead, command, *flags, *chance.choice([[], ["--no-pivot"]]), name]


def _switch(chance: random.Random) -> list[str]:
    return [chance.choice(["--debug", "--systemd-cgroup", "-debug", "--debug=true"])]


def _global(chance: random.Random) -> list[str]:
    return _with_value(
        chance, chance.choice(["--root", "--log", "-log", "--log-format", "--criu"])
    )


def _flag(chance: random.Random, command: str, bundles: list[str]) -> list[str]:
    kind = chance.randrange(6)
    if kind == 0:
        return [chance.choice(SWITCHES[command])]
    if kind == 1:
        return [chance.choice(UNKNOWN[command]), chance.choice(VALUES)]
    if kind == 2 or command == "exec":
        return _with_value(chance, chance.choice(VALUED[command]))
    name = chance.choice(["--bundle", "-bundle", "-b", "--b"])
    value = chance.choice(bundles)
    return chance.choice([[name, value], [f"{name}={value}"]])


def _with_value(chance: random.Random, name: str) -> list[str]:
    value = chance.choice([*VALUES, *DASHED])
    return chance.choice([[name, value], [f"{name}={value}"]])
