# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Add package repositories to apt: key, pins and source, each as a file of ours."""

import dataclasses
import pathlib
import re
import typing
import urllib.parse

from machine import files

_APT: typing.Final = pathlib.Path("/etc/apt")
_PREFIX: typing.Final = "gpu-ci-"
_NAME: typing.Final = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclasses.dataclass(frozen=True)
class Repository:
    """One repository.

    Attributes:
        name: such as `nvidia-container-toolkit`: lower-case letters, digits, dashes.
        uri: such as `https://nvidia.github.io/libnvidia-container/stable/deb/amd64`.
        suites: such as `stable`; `/` for a flat repository.
        components: such as `main`; empty for a flat repository.
        key: the public key that signs it, ASCII-armoured; apt accepts no other key for it.
        pins: which packages (names or globs, separated by spaces), of which version (a glob;
            empty: any from this repository's host), at which priority (apt_preferences(5)).
    """

    name: str
    uri: str
    suites: str
    components: str = ""
    key: str = ""
    pins: tuple[tuple[str, str, int], ...] = ()


def ensure(repository: Repository) -> bool:
    """Add a repository to apt. Return True if anything changed: its lists are old then.

    Raises:
        ValueError: the name is not valid, or the key or another value is empty or has two lines.
    """
    values = (repository.uri, repository.suites, repository.components)
    if not _NAME.fullmatch(repository.name) or any(re.search(r"[\r\n]", v) for v in values):
        raise ValueError(
            f"{repository.name!r} is not a repository's name, or has a value of two lines"
        )
    if not all((repository.uri, repository.suites, repository.key.strip())):
        raise ValueError(f"repository {repository.name} lacks an address, a suite or a key")
    key, pins, source = _paths(repository.name)
    files.ensure_directory(key.parent)
    # The source last: apt never sees it without its key and pins.
    changed = files.ensure_file(key, repository.key.strip() + "\n")
    if repository.pins:
        changed |= files.ensure_file(pins, _pins(repository))
    changed |= files.ensure_file(source, _source(repository, key))
    if not repository.pins:
        changed |= files.ensure_absent(pins)
    return changed


def remove(name: str) -> bool:
    """Remove a repository of ours from apt. Return True if it was there."""
    key, pins, source = _paths(name)
    changed = files.ensure_absent(source)
    changed |= files.ensure_absent(pins)
    return files.ensure_absent(key) or changed


def uris() -> list[str]:
    """Return the addresses of our repositories."""
    found = list[str]()
    for path in sorted((_APT / "sources.list.d").glob(f"{_PREFIX}*.sources")):
        found += re.findall(r"^URIs: (.*)$", files.read_text(path) or "", re.MULTILINE)
    return found


def _paths(name: str) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    return (
        _APT / "keyrings" / f"{_PREFIX}{name}.asc",
        _APT / "preferences.d" / f"{_PREFIX}{name}.pref",
        _APT / "sources.list.d" / f"{_PREFIX}{name}.sources",
    )


def _source(repository: Repository, key: pathlib.Path) -> str:
    components = f"Components: {repository.components}\n" if repository.components else ""
    return (
        f"Types: deb\nURIs: {repository.uri}\nSuites: {repository.suites}\n{components}"
        f"Signed-By: {key}\n"
    )


def _pins(repository: Repository) -> str:
    host = urllib.parse.urlsplit(repository.uri).hostname or ""
    return "\n".join(
        f"Package: {names}\n"
        + (f"Pin: version {version}\n" if version else f'Pin: origin "{host}"\n')
        + f"Pin-Priority: {priority}\n"
        for names, version, priority in repository.pins
    )
