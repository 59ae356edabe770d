# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Call apt and dpkg: without prompts, waiting for locks, with errors for the operator."""

import collections.abc
import dataclasses
import pathlib
import re
import typing

from machine import apt_errors, process
from machine import polling as waiting
from machine.apt_errors import PackageError

_LISTS: typing.Final = pathlib.Path("/var/lib/apt/lists")
# In seconds. Another package manager, such as unattended-upgrades, may work for minutes.
LOCK_WAIT: typing.Final = 300
_TIMEOUT: typing.Final = 1800.0  # for what downloads and unpacks hundreds of megabytes; in seconds
_UPDATE: typing.Final = 300.0  # lists are tens of megabytes
_LOOK: typing.Final = 60.0
_ENVIRONMENT: typing.Final = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
}
_OPTIONS: typing.Final = (
    "--yes", "--no-install-recommends",
    "-o", "APT::Install-Suggests=false",
    "-o", "APT::Get::AutomaticRemove=false",
    "-o", "Dpkg::Use-Pty=0",
    "-o", "Dpkg::Options::=--force-confold",
    "-o", "Acquire::Retries=2",
    "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30",
)  # fmt: skip
# Otherwise kernel modules, and packages that the distribution's patterns name, would never go.
_FORGET_KEPT: typing.Final = "#clear APT::NeverAutoRemove;\n"
_AUTOREMOVE: typing.Final = (
    "-c", "/dev/stdin",
    "-o", "APT::Protect-Kernels=false",
    "-o", "APT::AutoRemove::RecommendsImportant=false",
    "-o", "APT::AutoRemove::SuggestsImportant=false",
)  # fmt: skip
# The caller checks whether held packages would change.
_CHANGE: typing.Final = (
    "--purge", "--fix-broken", "--allow-downgrades", "--allow-change-held-packages",
    "-o", "APT::Ignore-Hold=true",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The effect that an installation would have.

    Attributes:
        new: packages that are not installed yet.
        changed: packages that would get another version, each with its present one.
        downgraded: those of them that would get a lower version.
        removed: packages that would be removed, each with its version.
    """

    new: tuple[str, ...]
    changed: dict[str, str]
    downgraded: frozenset[str]
    removed: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Known:
    """dpkg's state of one package.

    Attributes:
        installed: whether it is completely installed.
        held: whether it is held.
        torn: whether it has to be unpacked again.
        begun: whether it is incompletely installed: its installation was killed.
    """

    version: str
    installed: bool
    held: bool
    torn: bool
    begun: bool


def known(*names: str) -> dict[str, Known]:
    """Return dpkg's state of packages of this machine's architecture; globs are allowed.

    Raises:
        PackageError: dpkg fails.
    """
    if not names:
        return {}
    form = "${Package} ${Architecture} ${db:Status-Status} ${db:Status-Want} ${Version}\n"
    # dpkg exists on every machine, and is of the machine's own architecture.
    argv = ["/usr/bin/dpkg-query", "-W", "-f", form, "dpkg", *names]
    done = _run(argv, _LOOK, told=False)
    if done.returncode not in (0, 1):  # 1: one of them is unknown, see dpkg-query(1)
        raise apt_errors.explain("look at the packages", done.stdout, done.stderr)
    found = [line.split(" ") for line in done.stdout.splitlines()]
    native = next(row[1] for row in found if row[0] == "dpkg")
    asked = set(names)
    return {
        name: Known(
            version,
            installed=status == "installed",
            held=want == "hold",
            torn=status == "half-installed",
            begun=status not in ("installed", "not-installed", "config-files"),
        )
        for name, architecture, status, want, version in found
        if architecture in (native, "all", "") and (name != "dpkg" or "dpkg" in asked)
    }


def available(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the versions of packages in the archives, newest first, from the lists on disk.

    Raises:
        PackageError: apt fails.
    """
    done = _run(["/usr/bin/apt-cache", "madison", *names], _LOOK, told=False)
    if done.returncode:
        raise apt_errors.explain("look at the archives", done.stdout, done.stderr)
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in done.stdout.splitlines():
        name, version, source = (part.strip() for part in line.split("|", 2))
        if source.endswith("Packages") and version not in found.setdefault(name, []):
            found[name].append(version)
    return {name: tuple(versions) for name, versions in found.items()}


def update(ours: collections.abc.Collection[str]) -> tuple[PackageError | None, str]:
    """Fetch the package lists.

    Args:
        ours: the URIs of the repositories that matter.

    Returns:
        The error of one of these or None, and apt's messages about others, which may be ignored:
        their old lists stay.

    Raises:
        PackageError: no list can be fetched, for example because the disk is full or locked.
    """
    doing = "fetch the lists of packages"
    done = _patiently(doing, ["update"])
    lines = apt_errors.complaints(done.stderr)
    bases = [uri.rstrip("/") for uri in ours]
    about = [line for line in lines if any(base in line for base in bases)]
    others = [line for line in lines if line not in about and re.search(r"\w:/", line)]
    error = apt_errors.source_error(doing, about)
    # apt reports local repositories as gone, and reports no failure if there are only those.
    if apt_errors.is_full(done.stderr) or (lines and not apt_errors.has_room(_LISTS)):
        raise apt_errors.no_room(doing, done.stderr)
    if done.returncode and not error and (about or not others):
        raise apt_errors.explain(doing, done.stdout, done.stderr)
    return error, " / ".join(others)


def simulate(*wanted: str) -> Simulated:
    """Return what `install` would do.

    Raises:
        PackageError: it would fail.
    """
    done = _run(_get("install", "--simulate", *_CHANGE, *wanted), _LOOK)
    if done.returncode:
        raise apt_errors.explain(_doing("install", wanted), done.stdout, done.stderr)
    rows = re.findall(r"^Inst (\S+) (?:\[(\S+)\] )?\(", done.stdout, re.MULTILINE)
    _, _, down = done.stdout.partition("The following packages will be DOWNGRADED:\n")
    return Simulated(
        tuple(name for name, old in rows if not old),
        {name: old for name, old in rows if old},
        frozenset(_indented(down)),
        dict(re.findall(r"^(?:Remv|Purg) (\S+) \[(\S+)\]", done.stdout, re.MULTILINE)),
    )


def install(*wanted: str) -> None:
    """Install packages, each as `NAME` or `NAME=VERSION`, also to lower versions.

    Raises:
        PackageError: apt fails.
    """
    _patiently(_doing("install", wanted), ["install", *_CHANGE, *wanted], check=True)


def unneeded() -> set[str]:
    """Return packages that were installed as dependencies and are no longer needed.

    Raises:
        PackageError: apt fails.
    """
    argv = _get("autoremove", "--simulate", *_AUTOREMOVE)
    done = _run(argv, _LOOK, stdin=_FORGET_KEPT)
    if done.returncode:
        raise apt_errors.explain("look for unneeded packages", done.stdout, done.stderr)
    return set(re.findall(r"^(?:Remv|Purg) (\S+)", done.stdout, re.MULTILINE))


def purge(*names: str) -> None:
    """Remove packages with their configuration, also incomplete ones.

    Raises:
        PackageError: apt fails.
    """
    torn_too = ["-o", "Dpkg::Options::=--force-remove-reinstreq"]
    _patiently(_doing("remove", names), ["purge", *torn_too, *names], check=True)


def mark(how: str, *names: str) -> None:
    """Mark packages: `hold`, `unhold`, `auto`.

    Raises:
        PackageError: apt fails.
    """
    if names:
        argv = ["/usr/bin/apt-mark", how, *names]
        _patiently(_doing(f"mark as {how}", names), argv, check=True)


def end_interruption() -> None:
    """Finish what a killed hook or apt left; dpkg refuses all other work before."""
    _run(["/usr/bin/dpkg", "--force-confold", "--configure", "-a"], _TIMEOUT)


def _doing(what: str, names: collections.abc.Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}"


def _get(command: str, *arguments: str) -> list[str]:
    wait = f"DPkg::Lock::Timeout={LOCK_WAIT}"
    return ["/usr/bin/apt-get", command, *_OPTIONS, "-o", wait, *arguments]


def _patiently(doing: str, arguments: list[str], *, check: bool = False) -> process.Completed:
    """Run apt-get, or another program by its path; apt itself waits only for one of its locks."""
    argv = arguments if arguments[0].startswith("/") else _get(*arguments)

    def call() -> process.Completed:
        done = _run(argv, _UPDATE if arguments == ["update"] else _TIMEOUT)
        if done.returncode and apt_errors.is_interrupted(done.stderr):
            # Interrupted since the last look, for example a package manager that was then killed.
            end_interruption()
            done = _run(argv, _TIMEOUT)
        if done.returncode:
            error = apt_errors.explain(doing, done.stdout, done.stderr)
            if check or isinstance(error, apt_errors.BusyError):
                raise error
        return done

    return waiting.retry(call, lambda e: isinstance(e, apt_errors.BusyError), LOCK_WAIT, every=2)


def _run(
    argv: list[str], timeout: float, *, told: bool = True, stdin: str | None = None
) -> process.Completed:
    try:
        done = process.run(
            argv, timeout=timeout, env=_ENVIRONMENT, check=False, told=told, stdin=stdin
        )
        killed = process.CommandError(argv, done.returncode, "")
        if killed.starved:
            raise killed
    except process.CommandError as error:
        remedy = "the next event tries again"
        if timeout == _TIMEOUT:  # a program that ran for so long leaves something behind
            remedy = "see /var/log/apt/term.log, then run 'sudo dpkg --configure -a'"
        raise PackageError(f"{error}: {remedy}", passes=error.starved) from error
    return done


def _indented(text: str) -> list[str]:
    """Return the words of the lines below a heading of apt's output."""
    words = list[str]()
    for line in text.splitlines():
        if not line.startswith("  "):
            break
        words += line.split()
    return words
