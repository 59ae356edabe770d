# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Repositories of packages beside the distribution's: key, pins and source, as files of ours."""

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
        uri: where it lies, such as `https://nvidia.github.io/libnvidia-container/stable/deb/amd64`.
        suites: such as `stable`; `/` for a flat one.
        components: such as `main`; empty for a flat one.
        key: the public key that signs it, ASCII-armoured; no other one is taken for it.
        pins: which packages (names or globs, between spaces), of which version (a glob; empty: any
            that comes from this repository's host), at which priority (apt_preferences(5)).
    """

    name: str
    uri: str
    suites: str
    components: str = ""
    key: str = ""
    pins: tuple[tuple[str, str, int], ...] = ()


def ensure(repository: Repository) -> bool:
    """Have apt know a repository. Return True if anything changed; its lists are old then.

    Raises:
        ValueError: if the name is none, or the key or another value is empty or breaks its line.
    """
    values = (repository.uri, repository.suites, repository.components)
    if not _NAME.fullmatch(repository.name) or any(re.search(r"[\r\n]", v) for v in values):
        raise ValueError(
            f"{repository.name!r} is no repository's name, or has a value of two lines"
        )
    if not all((repository.uri, repository.suites, repository.key.strip())):
        raise ValueError(f"repository {repository.name} lacks an address, a suite or a key")
    key, pins, source = _paths(repository.name)
    files.ensure_directory(key.parent)
    # The source last: apt never knows it without its key and pins.
    changed = files.ensure_file(key, repository.key.strip() + "\n")
    if repository.pins:
        changed |= files.ensure_file(pins, _pins(repository))
    changed |= files.ensure_file(source, _source(repository, key))
    if not repository.pins:
        changed |= files.ensure_absent(pins)
    return changed


def remove(name: str) -> bool:
    """Have apt know a repository of ours no more. Return True if it did."""
    key, pins, source = _paths(name)
    changed = files.ensure_absent(source)
    changed |= files.ensure_absent(pins)
    return files.ensure_absent(key) or changed


def uris() -> list[str]:
    """Where the repositories of ours lie."""
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
