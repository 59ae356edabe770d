# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Turn complaints of apt and dpkg into one sentence for the operator."""

import collections.abc
import os
import pathlib
import re
import typing

from machine import exhaustion as scarcity
from machine.errors import PartError

# Messages of apt 2.4 to 3.0 and dpkg 1.21 to 1.22, in English as LANG=C.UTF-8 gives them.
_BUSY: typing.Final = re.compile(
    r"could not get lock|unable to lock|unable to acquire the dpkg frontend lock|"
    r"was locked by another process|is locked by another process",
    re.IGNORECASE,
)
_HOLDER: typing.Final = re.compile(r"held by process (\d+)(?: \(([^)]*)\))?|with pid (\d+)")
_FULL: typing.Final = re.compile(
    r"no space left on device|don't have enough free space|disk quota exceeded", re.IGNORECASE
)
_SIGNATURE: typing.Final = re.compile(
    r"NO_PUBKEY|BADSIG|EXPKEYSIG|EXPSIG|REVKEYSIG|NODATA|GPG error|OpenPGP signature|"
    r"is not signed|signatures? (?:couldn't be verified|verification|(?:was|were) invalid)|"
    r"Clearsigned file isn't valid|Splitting up .* failed|could not be authenticated",
    re.IGNORECASE,
)
_DAMAGED: typing.Final = re.compile(
    r"Hash Sum mismatch|unexpected size|Size mismatch|is corrupt|Unable to find expected entry",
    re.IGNORECASE,
)
_ABSENT: typing.Final = re.compile(r"does not have a Release file|404  ?Not Found", re.IGNORECASE)
_RIVAL: typing.Final = re.compile(r"Conflicting values set for option Signed-By", re.IGNORECASE)
_UNMET: typing.Final = re.compile(
    r"^ \S+ : (?:Pre)?(?:Depends|Breaks|Conflicts): .*$", re.MULTILINE
)
_UNREACHABLE: typing.Final = re.compile(
    r"Failed to fetch|Unable to fetch|Could not (?:resolve|connect|open)|Cannot initiate|"
    r"Temporary failure resolving|Connection (?:failed|timed out|refused)|timed out",
    re.IGNORECASE,
)
_INTERRUPTED: typing.Final = re.compile(
    r"^E: (?:dpkg was interrupted|Sub-process /usr/bin/dpkg exited unexpectedly)", re.MULTILINE
)
_FAILED: typing.Final = re.compile(
    r"^dpkg: error processing (?:package|archive) (\S+) \(--\S+\):\n\s*(.*)$", re.MULTILINE
)
# Folders that apt and dpkg write to; a disk with less free space, in bytes, is full.
_WRITTEN: typing.Final = (
    "/", "/boot", "/usr", "/var", "/var/lib/apt", "/var/lib/dpkg", "/var/cache/apt/archives",
)  # fmt: skip
_ROOM: typing.Final = 4 << 20
_CONFIGURE: typing.Final = "run 'sudo dpkg --configure -a'"
_ENOUGH: typing.Final = 300  # characters of a program's output; a status is one line


class PackageError(PartError):
    """Packages can't be installed or removed. The text is one sentence: what, why, the remedy.

    Attributes:
        passes: whether it may pass without help, such as another apt at work.
        signature: whether a repository's key or signature was refused.
    """

    def __init__(self, text: str, *, passes: bool = False, signature: bool = False) -> None:
        super().__init__(text)
        self.passes = passes
        self.signature = signature


class BusyError(PackageError):
    """Another package manager holds one of the locks."""


def explain(doing: str, stdout: str, stderr: str) -> PackageError:
    """Return the error for a program that failed.

    Args:
        doing: what it should do, such as `install gpuci-tool`.
        stdout: its standard output.
        stderr: its standard error.
    """
    if is_full(stderr):
        return no_room(doing, stderr)
    if failed := _FAILED.search(stderr):
        return PackageError(_failed_package(doing, failed, stdout, stderr))
    if _BUSY.search(stderr):
        found = _HOLDER.search(stderr)
        number, name, other = found.groups() if found else ("", "", "")
        who = f"process {number or other}{f' ({name})' if name else ''}" if found else "another"
        return BusyError(
            f"can't {doing}: {who} is working on the machine's packages: wait until it ends, or "
            f"see 'ps -fp {number or other or 'PID'}'",
            passes=True,
        )
    if is_interrupted(stderr):
        return PackageError(f"can't {doing}: dpkg was interrupted: {_CONFIGURE}")
    if scarcity.is_told_by(stderr):
        return PackageError(
            f"can't {doing}: the machine is short of memory or processes "
            f"({_short(' / '.join(complaints(stderr)) or stderr)}): see 'free -h'",
            passes=True,
        )
    unmet = [" ".join(line.split()) for line in _UNMET.findall(stdout)]
    said = " / ".join(unmet or complaints(stderr)) or stderr or stdout
    return source_error(doing, complaints(stderr)) or PackageError(
        f"can't {doing}: apt said {_short(said)!r}: "
        "see /var/log/apt/term.log and run 'sudo apt-get --fix-broken install'"
    )


def is_full(stderr: str) -> bool:
    """Return whether apt or dpkg found no space on a disk."""
    return bool(_FULL.search(stderr))


def has_room(folder: pathlib.Path) -> bool:
    """Return whether the disk of a folder has free space.

    The test file is removed even if it was written only in part, so that a full disk keeps some
    space.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM and not (found.f_files and not found.f_favail)


def no_room(
    doing: str,
    stderr: str,
    has_room: collections.abc.Callable[[pathlib.Path], bool] = has_room,
) -> PackageError:
    """Return the error of a program that found no space, even if its message is another one.

    Args:
        doing: what it should do.
        stderr: its standard error.
        has_room: returns whether the disk of a folder has free space.
    """
    full: dict[int, str] = {}
    for folder in filter(pathlib.Path.is_dir, map(pathlib.Path, _WRITTEN)):
        if not has_room(folder):
            full.setdefault(folder.stat().st_dev, str(folder))  # each disk once
    of = f" of {' and of '.join(full.values())}" if full else ""
    said = _line(_FULL, stderr) or _short(" / ".join(complaints(stderr)))
    return PackageError(
        f"can't {doing}: the disk{of} is full ({said}): make room, see "
        f"'df -h {' '.join(_WRITTEN)}'"
    )


def is_interrupted(stderr: str) -> bool:
    """Return whether apt refuses because dpkg was killed: see machine.apt.end_interruption."""
    return bool(_INTERRUPTED.search(stderr))


def source_error(doing: str, lines: collections.abc.Sequence[str]) -> PackageError | None:
    """Return the error of a repository, by apt's complaints about it; None if there is none."""
    said = "\n".join(lines)
    if _RIVAL.search(said):
        return PackageError(
            f"can't {doing}: this machine has another source of the same repository "
            f"({_short(_line(_RIVAL, said))}): remove that file from /etc/apt/sources.list.d"
        )
    if _SIGNATURE.search(said):
        return PackageError(
            f"can't {doing}: the signature of a repository was refused "
            f"({_short(_line(_SIGNATURE, said))}): give the key that signs it, and find out "
            "who may have changed it",
            signature=True,
        )
    if _DAMAGED.search(said):
        return PackageError(
            f"can't {doing}: a repository does not match its signature "
            f"({_short(_line(_DAMAGED, said))}): wait for its mirror's update, or find out who "
            "may have changed it, then run 'sudo apt-get update'"
        )
    if _ABSENT.search(said):
        return PackageError(
            f"can't {doing}: a repository's address does not exist "
            f"({_short(_line(_ABSENT, said))}): give the right address, or fix the mirror there"
        )
    if _UNREACHABLE.search(said):
        return PackageError(
            f"can't {doing}: a repository can't be reached ({_short(_line(_UNREACHABLE, said))}): "
            "check the network and the model's proxies, then run 'sudo apt-get update'",
            passes=True,
        )
    return None


def complaints(stderr: str) -> list[str]:
    """Return apt's own warnings and errors, each on one line, without repeats or notices.

    A line that has no letter of its own continues the error before it.
    """
    found = list[str]()
    for line in stderr.splitlines():
        if line.startswith(("E: ", "W: ")):
            found.append(line[3:].strip())
        elif found and line.startswith(" "):
            found[-1] += f" {line.strip()}"
    return list(dict.fromkeys(found))


def _failed_package(doing: str, failed: re.Match[str], stdout: str, stderr: str) -> str:
    name, how = failed.groups()
    before = [line for line in stderr[: failed.start()].splitlines() if line.strip()]
    _, there, after = stdout.rpartition(f"Setting up {name}")
    if not before and there:
        before = [line for line in after.splitlines()[1:] if line.strip()]
    said = f", it said {_short(before[-1].strip())!r}" if before else ""
    return (
        f"can't {doing}: package {name} failed ({how.strip()}{said}): see /var/log/apt/term.log, "
        f"fix it and {_CONFIGURE}"
    )


def _line(pattern: re.Pattern[str], text: str) -> str:
    return next((line.strip() for line in text.splitlines() if pattern.search(line)), "")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ENOUGH else f"{text[: _ENOUGH - 3]}..."
