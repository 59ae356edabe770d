# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Describe a file, link or folder in one line, so that a later change is noticed.

A file: `file 755 0:0 sha256:<64 hex digits>`: mode, owner and group, content. A link:
`link <target>`. A folder: `folder 755 0:0`; a third word lists the only names that it may hold:
`runc/containerd-launcher`. Any of them may be missing, and hidden names do not count.
"""

import collections.abc
import hashlib
import pathlib
import stat


def describe(path: pathlib.Path) -> str:
    """Describe the file at a path; empty if there is none."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(found.st_mode):
        return f"link {path.readlink()}"
    rights = f"{stat.S_IMODE(found.st_mode):o} {found.st_uid}:{found.st_gid}"
    if stat.S_ISDIR(found.st_mode):
        return f"folder {rights}"
    if stat.S_ISREG(found.st_mode):
        return f"file {rights} sha256:{checksum(path)}"
    return f"special {rights}"


def folder(path: pathlib.Path, names: collections.abc.Iterable[str] | None) -> str:
    """Describe a folder and the names that it may hold; without `names` it may hold any."""
    told = describe(path)
    return told if names is None else f"{told} {'/'.join(sorted(names))}"


def checksum(path: pathlib.Path) -> str:
    """SHA-256 of a file's content in hexadecimal; empty if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def difference(path: pathlib.Path, told: str) -> str:
    """How the file at a path differs from its description, as a clause; empty if it does not."""
    now = describe(path)
    if not now:
        return "is missing"
    kind, *was = told.split(" ", 1 if told.startswith("link ") else -1)
    kind_now, *found = now.split(" ", 1 if now.startswith("link ") else -1)
    if kind_now != kind:
        return f"is now a {kind_now}, not a {kind}"
    if kind == "link":
        return f"leads to {found[0]}, not {was[0]}" if found != was else ""
    for what, value, expected in zip(("mode", "owner"), found, was, strict=False):
        if value != expected:
            return f"has the {what} {value}, not {expected}"
    if kind == "file":
        return "has another content" if found[2] != was[2] else ""
    strangers = _strangers(path, was[2].split("/")) if was[2:] else []
    return (
        f"holds {', '.join(strangers)}, which gpu-ci-worker did not install" if strangers else ""
    )


def _strangers(path: pathlib.Path, names: list[str]) -> list[str]:
    """Other names in a folder; hidden ones are found neither as programs nor as modules."""
    found = sorted(entry.name for entry in path.iterdir())
    return [name for name in found if name not in names and not name.startswith(".")]
