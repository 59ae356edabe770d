# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages of the distribution. What was installed for us is written down, so that it can go."""

import collections.abc
import contextlib
import logging

from machine import apt, package_record, repositories
from machine.apt_errors import PackageError
from machine.package_record import Entry, Record

_log = logging.getLogger(__name__)

Progress = collections.abc.Callable[[str], None]
Known = dict[str, apt.Known]


def installed(*names: str) -> dict[str, str]:
    """The versions of those packages that are wholly installed; globs such as `nvidia-*` too.

    Raises:
        PackageError: if dpkg can't tell.
    """
    return {name: seen.version for name, seen in apt.known(*names).items() if seen.installed}


def available(name: str) -> tuple[str, ...]:
    """The versions that the archives have of a package, newest first, by the lists on disk.

    Raises:
        PackageError: if apt can't tell.
    """
    return apt.available(name)[name]


def refresh() -> str:
    """Fetch the lists of packages anew.

    Returns:
        What apt said of repositories that are not ours and can't be had: their old lists stay.

    Raises:
        PackageError: if one of ours can't be had, its signature is bad, or none can be fetched.
    """
    error, others = _update()
    if error:
        raise error
    return others


def ensure_installed(*names: str) -> bool:
    """Have packages installed, of whatever version. Return True if any was missing.

    Raises:
        PackageError: if apt can't install them.
    """
    here = installed(*names)
    missing = [name for name in names if name not in here]
    if not missing:
        return False
    record = package_record.read()
    failure = _prepare()
    wanted = [*_torn(record, missing), *missing]
    with _because_of(failure, dict.fromkeys(missing, "")):
        simulated = apt.simulate(*wanted)
    entry = record.asked_for({*missing})
    _check_foreign(simulated, {}, record, entry)
    entry.new |= {*simulated.new}
    _install(record, wanted)
    return True


def ensure(
    owner: str,
    versions: collections.abc.Mapping[str, str],
    progress: Progress,
    *,
    held: bool = True,
) -> bool:
    """Have packages at exactly these versions, and nobody else move them.

    What is new is written down as the owner's. What the charm brought may go up or down, another's
    package stays as it is.

    Args:
        owner: such as `toolkit`.
        versions: names and versions; empty: any, what is missing comes at apt's choice.
        progress: is told what takes long.
        held: whether what came for the owner is held, so that no upgrade moves it.

    Returns:
        Whether anything changed.

    Raises:
        PackageError: if a package at another version is not the charm's, or apt can't do it.
    """
    record = package_record.read()
    entry = record.of(owner)
    due = _due(versions, record)
    if due:
        try:
            _change(record, entry, versions, due, progress)
        except PackageError:
            # What went well before stays ours and held.
            with contextlib.suppress(PackageError):
                _hold(record, entry, held=held)
            raise
    elif adopted := record.new() & versions.keys() - entry.asked:
        entry.asked |= adopted
        entry.new |= adopted
        record.write()
    return _hold(record, entry, held=held) or bool(due)


def owned(owner: str) -> dict[str, str]:
    """What came for the owner and is installed still, with versions.

    Raises:
        PackageError: if dpkg can't tell.
    """
    return installed(*package_record.read().of(owner).new)


def begun(owner: str) -> set[str]:
    """What came for the owner and is there by halves, since a hook was killed meanwhile.

    Raises:
        PackageError: if dpkg can't tell.
    """
    seen = apt.known(*package_record.read().of(owner).new)
    return {name for name in seen if seen[name].begun}


def release_holds(owner: str) -> bool:
    """Let others move what was held for the owner; holds of the operator's stay.

    Returns:
        Whether any hold of ours was there.

    Raises:
        PackageError: if apt can't.
    """
    record = package_record.read()
    entry = record.of(owner)
    if not entry.held:
        return False
    changed = _unhold(entry.held)
    entry.held = set()
    record.write()
    return changed


def disown(owner: str) -> bool:
    """Leave what came for the owner to the machine, no longer held. True if there was anything.

    Raises:
        PackageError: if apt can't.
    """
    release_holds(owner)
    record = package_record.read()
    others = [entry for entry in record.entries if entry.owner != owner]
    changed = others != record.entries
    record.entries = others
    record.write()
    return changed


def remove_installed(*names: str) -> bool:
    """Purge what was installed for us (for these names; by default all) and nobody else needs.

    Returns:
        Whether there was anything to remove.

    Raises:
        PackageError: if apt can't.
    """
    record = package_record.read()
    meant = [entry for entry in record.entries if not names or entry.asked & {*names}]
    if not meant:
        return False
    came = {name for entry in meant for name in entry.new}
    held = {name for entry in meant for name in entry.held}
    # Of an entry that was asked for more than these names, the rest stays.
    for entry in meant:
        entry.asked = entry.asked - {*names} if names else set()
    left = [entry for entry in record.entries if entry.asked]
    for entry in left:
        entry.new |= came & entry.asked
    candidates = came - {name for entry in left for name in entry.asked}
    _unhold(candidates & held)
    seen = _finished(candidates)
    # Whoever holds one of them since wants it.
    here = sorted(n for n in candidates if _is_begun_at_least(seen, n) and not seen[n].held)
    apt.mark("auto", *here)
    gone = sorted(apt.unneeded() & {*here}) if here else []
    if gone:
        apt.end_interruption()
        apt.purge(*gone)
    record.forget({*gone})
    for entry in meant:
        if not entry.asked:
            # What is there by halves is nobody's.
            entry.new = {name for name in entry.new & {*here} if seen[name].begun}
            entry.held = set()
    record.write()
    return True


def _due(versions: collections.abc.Mapping[str, str], record: Record) -> list[str]:
    """Which of these packages are missing, or of another version, which only ours may be."""
    seen = apt.known(*versions, *record.names())
    _forget_absent(record, seen)
    due = list[str]()
    for name, version in versions.items():
        if not _is_here(seen, name):
            due.append(name)
        elif version not in ("", seen[name].version):
            if name not in record.new():
                raise _not_ours(name, seen[name].version, version)
            due.append(name)
    return due


def _finished(names: set[str]) -> Known:
    """What dpkg has of packages when those that were begun are finished, as far as they can be."""
    seen = apt.known(*names)
    if not any(one.begun for one in seen.values()):
        return seen
    apt.end_interruption()
    return apt.known(*names)


def _is_here(seen: Known, name: str) -> bool:
    return name in seen and seen[name].installed


def _is_begun_at_least(seen: Known, name: str) -> bool:
    return name in seen and (seen[name].installed or seen[name].begun)


def _change(
    record: Record,
    entry: Entry,
    versions: collections.abc.Mapping[str, str],
    due: list[str],
    progress: Progress,
) -> None:
    failure = _prepare()
    mine = sorted({*due} | record.new() & versions.keys())
    seen = apt.known(*mine)
    # Those that are right stay where they are while apt looks for what fits together.
    fixed = {n: versions[n] or (seen[n].version if _is_here(seen, n) else "") for n in mine}
    wanted = [
        *_torn(record, mine),
        *(f"{name}={version}" if version else name for name, version in fixed.items()),
    ]
    with _because_of(failure, fixed):
        simulated = apt.simulate(*wanted)
    _check_foreign(simulated, versions, record, entry)
    entry.new |= {*simulated.new} | record.new() & {*mine}
    entry.asked |= {*mine}
    progress(f"Installing {_named(due, fixed, len(simulated.new) + len(simulated.changed))}")
    _install(record, wanted)
    record.forget({*simulated.removed})
    record.write()


def _install(record: Record, wanted: list[str]) -> None:
    # Before the first file lands: what a killed hook has half installed is ours too.
    record.write()
    try:
        apt.install(*wanted)
    except PackageError:
        with contextlib.suppress(PackageError):
            _forget_absent(record, apt.known(*record.names()))
        raise


def _forget_absent(record: Record, seen: Known) -> None:
    """Strike out what did not come, or has gone: whoever else brings it, it is not ours."""
    absent = {name for name in record.names() if not _is_begun_at_least(seen, name)}
    if absent:
        record.forget(absent)
        record.write()


def _prepare() -> PackageError | None:
    """End what was interrupted and fetch the lists; return why one of ours is old, if one is."""
    apt.end_interruption()
    error, others = _update()
    if others:
        _log.warning("package lists may be old: %s", others)
    if error and not error.passes:
        raise error
    return error


def _torn(record: Record, names: collections.abc.Iterable[str]) -> list[str]:
    """What apt has to be told besides if one of these, or of ours, was killed in its unpacking."""
    seen = apt.known(*names, *record.new())
    torn = sorted(name for name in seen if seen[name].torn)
    # Else apt passes over those that have the right version by name.
    return ["--reinstall", *torn] if torn else []


def _update() -> tuple[PackageError | None, str]:
    return apt.update(repositories.uris())


@contextlib.contextmanager
def _because_of(
    failure: PackageError | None, versions: collections.abc.Mapping[str, str]
) -> collections.abc.Generator[None]:
    """Have a version that is not there told as such, or why the lists are not at hand."""
    try:
        yield
    except PackageError as error:
        there, seen = apt.available(*versions), apt.known(*versions)
        for name, version in versions.items():
            if version in there[name] if version else there[name]:
                continue
            if name in seen and seen[name].version == version:
                continue
            if failure:
                raise failure from error
            wanted, choose = name, ""
            if version:
                have = f"have {', '.join(there[name])}" if there[name] else "have none"
                wanted = f"{name} {version} ({have})"
                choose = "ask for one that they have, or "
            raise PackageError(
                f"the archives of this machine have no package {wanted}: {choose}run 'sudo "
                f"apt-get update' and see 'apt-cache policy {name}'"
            ) from error
        raise


def _check_foreign(
    simulated: apt.Simulated,
    versions: collections.abc.Mapping[str, str],
    record: Record,
    entry: Entry,
) -> None:
    """Refuse what would move another's package, unless it is a free one that is to go up."""
    ours, our_holds = record.new(), record.held()
    others = {name: one.owner for one in record.entries for name in one.held - entry.new}
    touched = (*simulated.new, *simulated.changed, *simulated.removed)
    for name, seen in apt.known(*touched).items():
        if seen.held and name not in our_holds:
            raise PackageError(
                f"package {name} is held on this machine, and not by this charm, which would have "
                f"to change it: run 'sudo apt-mark unhold {name}'"
            )
    for name in sorted(others.keys() & {*simulated.changed, *simulated.removed}):
        raise PackageError(
            f"package {name} is held for this charm's {others[name]}, and would have to change "
            f"for {', '.join(sorted(versions or entry.asked))}: ask for what goes together"
        )
    for name, old in simulated.removed.items():
        if name not in ours:
            raise PackageError(
                f"package {name} {old} did not come by this charm, and would have to go for what "
                f"it is to install: run 'sudo apt-get purge {name}' if nothing needs it"
            )
    for name, old in simulated.changed.items():
        if name not in ours and (name in versions or name in simulated.downgraded):
            raise _not_ours(name, old, versions.get(name, ""))


def _not_ours(name: str, has: str, wanted: str) -> PackageError:
    which = f"{name}={wanted}" if wanted else name
    return PackageError(
        f"package {name} {has} is on this machine and did not come by this charm, which needs "
        f"{wanted or 'another version'}: run 'sudo apt-get install --allow-downgrades {which}', "
        f"or 'sudo apt-get purge {name}' if nothing needs it"
    )


def _hold(record: Record, entry: Entry, *, held: bool) -> bool:
    """Hold what came for an owner, where it is not held already."""
    if not held:
        return False
    seen = apt.known(*entry.asked, *entry.new)
    loose = sorted(name for name in seen if _is_here(seen, name) and not seen[name].held)
    if loose:
        entry.held |= {*loose}
        record.write()
        apt.mark("hold", *loose)
    return bool(loose)


def _unhold(names: collections.abc.Iterable[str]) -> bool:
    loose = sorted(name for name, seen in apt.known(*names).items() if seen.held)
    apt.mark("unhold", *loose)
    return bool(loose)


def _named(due: list[str], versions: collections.abc.Mapping[str, str], number: int) -> str:
    shown = ", ".join(f"{name} {versions[name]}".rstrip() for name in due[:2])
    return f"{shown} ({number} packages)" if number > len(due[:2]) else shown
