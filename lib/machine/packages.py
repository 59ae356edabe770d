# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install packages of the distribution, and record them so that they can be removed again."""

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
    """Return the versions of those packages that are completely installed; globs are allowed.

    Raises:
        PackageError: dpkg fails.
    """
    return {name: seen.version for name, seen in apt.known(*names).items() if seen.installed}


def refresh() -> str:
    """Fetch the package lists.

    Returns:
        apt's messages about other repositories that can't be reached: their old lists stay.

    Raises:
        PackageError: one of ours can't be reached or has a bad signature, or none can be fetched.
    """
    error, others = _update()
    if error:
        raise error
    return others


def ensure_installed(*names: str) -> bool:
    """Install packages in any version. Return True if any was missing.

    Raises:
        PackageError: apt can't install them.
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
) -> bool:
    """Install packages in exactly these versions, and keep others from changing them.

    New packages are recorded as the owner's. Packages that the charm brought may change to a
    higher or lower version; packages of others stay as they are.

    Args:
        owner: such as `toolkit`.
        versions: names and versions; an empty version: any, missing packages in apt's choice.
        progress: called with steps that take long.

    Returns:
        Whether anything changed.

    Raises:
        PackageError: a package in another version is not the charm's, or apt fails.
    """
    record = package_record.read()
    entry = record.of(owner)
    due = _due(versions, record)
    if due:
        try:
            _change(record, entry, versions, due, progress)
        except PackageError:
            # What was installed before stays ours and held.
            with contextlib.suppress(PackageError):
                _hold(record, entry)
            raise
    elif adopted := record.new() & versions.keys() - entry.asked:
        entry.asked |= adopted
        entry.new |= adopted
        record.write()
    return _hold(record, entry) or bool(due)


def owned(owner: str) -> dict[str, str]:
    """Return the owner's packages that are still installed, with versions.

    Raises:
        PackageError: dpkg fails.
    """
    return installed(*package_record.read().of(owner).new)


def begun(owner: str) -> set[str]:
    """Return the owner's packages that are incomplete because a hook was killed.

    Raises:
        PackageError: dpkg fails.
    """
    seen = apt.known(*package_record.read().of(owner).new)
    return {name for name in seen if seen[name].begun}


def release_holds(owner: str) -> bool:
    """Release the holds of the owner's packages; holds of the operator stay.

    Returns:
        Whether there was any hold of ours.

    Raises:
        PackageError: apt fails.
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
    """Leave the owner's packages to the machine, without holds. Return True if there were any.

    Raises:
        PackageError: apt fails.
    """
    if not any(entry.owner == owner for entry in package_record.read().entries):
        return False
    release_holds(owner)
    record = package_record.read()
    others = [entry for entry in record.entries if entry.owner != owner]
    record.entries = others
    record.write()
    return True


def remove_installed(*names: str) -> bool:
    """Purge the packages that were installed for us (by default all) and that no one else needs.

    Returns:
        Whether there was anything to remove.

    Raises:
        PackageError: apt fails.
    """
    record = package_record.read()
    meant = [entry for entry in record.entries if not names or entry.asked & {*names}]
    if not meant:
        return False
    came = {name for entry in meant for name in entry.new}
    held = {name for entry in meant for name in entry.held}
    # If an entry has other names too, those stay.
    for entry in meant:
        entry.asked = entry.asked - {*names} if names else set()
    left = [entry for entry in record.entries if entry.asked]
    for entry in left:
        entry.new |= came & entry.asked
    candidates = came - {name for entry in left for name in entry.asked}
    _unhold(candidates & held)
    seen = _finished(candidates)
    # A package that someone held since then is wanted.
    here = sorted(n for n in candidates if _is_begun_at_least(seen, n) and not seen[n].held)
    apt.mark("auto", *here)
    gone = sorted(apt.unneeded() & {*here}) if here else []
    if gone:
        apt.end_interruption()
        apt.purge(*gone)
    record.forget({*gone})
    for entry in meant:
        if not entry.asked:
            # Incomplete packages belong to no one.
            entry.new = {name for name in entry.new & {*here} if seen[name].begun}
            entry.held = set()
    record.write()
    return True


def _due(versions: collections.abc.Mapping[str, str], record: Record) -> list[str]:
    """Return which packages are missing or in another version; those must be ours."""
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
    """Return dpkg's state of packages after interrupted installations were finished."""
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
    # Packages in the right version stay as they are while apt resolves the others.
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
    # Recorded before the first file is written: what a killed hook has half installed is ours.
    record.write()
    try:
        apt.install(*wanted)
    except PackageError:
        with contextlib.suppress(PackageError):
            _forget_absent(record, apt.known(*record.names()))
        raise


def _forget_absent(record: Record, seen: Known) -> None:
    """Remove packages from the record that did not come or have gone."""
    absent = {name for name in record.names() if not _is_begun_at_least(seen, name)}
    if absent:
        record.forget(absent)
        record.write()


def _prepare() -> PackageError | None:
    """Finish interrupted work and fetch the lists; return why a list of ours is old, if so."""
    apt.end_interruption()
    error, others = _update()
    if others:
        _log.warning("package lists may be old: %s", others)
    if error and not error.passes:
        raise error
    return error


def _torn(record: Record, names: collections.abc.Iterable[str]) -> list[str]:
    """Return additional arguments for apt if one of these or of our packages was interrupted."""
    seen = apt.known(*names, *record.new())
    torn = sorted(name for name in seen if seen[name].torn)
    # Otherwise apt skips packages that have the right version by name.
    return ["--reinstall", *torn] if torn else []


def _update() -> tuple[PackageError | None, str]:
    return apt.update(repositories.uris())


@contextlib.contextmanager
def _because_of(
    failure: PackageError | None, versions: collections.abc.Mapping[str, str]
) -> collections.abc.Generator[None]:
    """Raise an error for a version that the archives don't have, or for lists that are missing."""
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
    """Refuse to change another's package, unless it is a free one that gets a higher version."""
    ours, our_holds = record.new(), record.held()
    others = {name: one.owner for one in record.entries for name in one.held - entry.new}
    touched = (*simulated.new, *simulated.changed, *simulated.removed)
    for name, seen in apt.known(*touched).items():
        if seen.held and name not in our_holds:
            raise PackageError(
                f"package {name} is held on this machine, not by gpu-ci-worker, but has to "
                f"change: run 'sudo apt-mark unhold {name}'"
            )
    for name in sorted(others.keys() & {*simulated.changed, *simulated.removed}):
        raise PackageError(
            f"package {name} is held for gpu-ci-worker's {others[name]}, but has to change for "
            f"{', '.join(sorted(versions or entry.asked))}: ask for versions that fit together"
        )
    for name, old in simulated.removed.items():
        if name not in ours:
            raise PackageError(
                f"package {name} {old} was not installed by gpu-ci-worker, but has to be removed "
                f"for its packages: run 'sudo apt-get purge {name}' if nothing needs it"
            )
    for name, old in simulated.changed.items():
        if name not in ours and (name in versions or name in simulated.downgraded):
            raise _not_ours(name, old, versions.get(name, ""))


def _not_ours(name: str, has: str, wanted: str) -> PackageError:
    which = f"{name}={wanted}" if wanted else name
    return PackageError(
        f"package {name} {has} was not installed by gpu-ci-worker, which needs "
        f"{wanted or 'another version'}: run 'sudo apt-get install --allow-downgrades {which}', "
        f"or 'sudo apt-get purge {name}' if nothing needs it"
    )


def _hold(record: Record, entry: Entry) -> bool:
    """Hold the packages of an owner that are not held already."""
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
