# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read runc's command line as runc 1.1 to 1.5 does (urfave/cli v1 on Go's flag package)."""

from __future__ import annotations

_GLOBAL = frozenset({"root", "log", "log-format", "rootless", "criu"})
_CREATE = frozenset({"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds"})
_VALUES = {
    "create": _CREATE,
    "run": _CREATE,
    "restore": frozenset(
        {
            *("bundle", "b", "console-socket", "image-path", "work-path", "pid-file"),
            *("lsm-profile", "lsm-mount-context", "manage-cgroups-mode"),
        }
    ),
    "exec": frozenset(
        {
            *("console-socket", "pidfd-socket", "cwd", "env", "e", "user", "u"),
            *("additional-gids", "g", "process", "p", "pid-file", "process-label"),
            *("apparmor", "cap", "c", "preserve-fds", "cgroup"),
        }
    ),
}
_LONG = {"b": "bundle", "p": "process"}


class Call:
    """One call of runc.

    Attributes:
        command: the subcommand; empty if there is none.
        options: the value of each flag with a value, by its long name; the last one counts.
        words: the arguments that are neither flags nor their values: the container's id first.
    """

    __slots__ = ("command", "options", "words")

    def __init__(self, command: str, options: dict[str, str], words: list[str]) -> None:
        self.command = command
        self.options = options
        self.words = words

    @property
    def container(self) -> str:
        """Return the container's id; empty if it is missing or invalid (runc 1.1 to 1.5)."""
        name = self.words[0] if self.words else ""
        return "" if "/" in name or name in {".", ".."} else name


def parse(argv: list[str]) -> Call:
    """Read `argv` without the program's name. Never fails: runc reports wrong arguments itself.

    A flag may have one dash or two, and its value in the next word or after `=`; `--` ends flags,
    once before the command and once after it. runc's own flags come before the command, and its
    flags may come after a container's id, but not those of `exec`: there the container's own
    command begins.
    """
    options: dict[str, str] = {}
    words = _take_flags(argv, _GLOBAL, options, mixed=False)
    command = words[0] if words else ""
    valued = _VALUES.get(command, frozenset[str]())
    words = _take_flags(words[1:], valued, options, mixed=command != "exec")
    return Call(command, options, words)


def _take_flags(
    argv: list[str], valued: frozenset[str], options: dict[str, str], *, mixed: bool
) -> list[str]:
    """Put the values of flags into `options`; return the other words.

    Without `mixed` the first of these words ends the flags.
    """
    words: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--":
            return words + argv[position:]
        if not word.startswith("-") or word == "-":
            if not mixed:
                return argv[position - 1 :]
            words.append(word)
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        if flag not in valued:
            continue
        if not equals:
            if position == len(argv):
                break
            value = argv[position]
            position += 1
        options[_LONG.get(flag, flag)] = value
    return words
