# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make and remove system users of our own."""

import pathlib
import pwd
import typing

from machine import process

# Marks users in /etc/passwd that were made here, so that no other user is ever removed.
_OURS: typing.Final = "gpu-ci-worker"


def exists(name: str) -> bool:
    """Return whether a user of this name exists."""
    return _find(name) is not None


def ensure_user(name: str, home: pathlib.Path) -> bool:
    """Make a system user without a login, with its own group. Return True if it was made."""
    if exists(name):
        return False
    process.run(
        [
            "/usr/sbin/useradd", "--system", "--user-group", "--no-create-home",
            "--home-dir", str(home), "--shell", "/usr/sbin/nologin", "--comment", _OURS, name,
        ],
        timeout=60,
    )  # fmt: skip
    return True


def ensure_no_user(name: str) -> bool:
    """Remove a user that was made here, with its group; its home stays. Return True if removed."""
    user = _find(name)
    if user is None or user.pw_gecos != _OURS:
        return False
    process.run(["/usr/sbin/userdel", name], timeout=60)
    return True


def becoming(name: str) -> list[str]:
    """Return a prefix for a command that runs it as a user, without a way to become another one.

    The program stays a child of the caller and can end with it.

    Raises:
        LookupError: there is no such user.
    """
    user = pwd.getpwnam(name)
    return [
        "/usr/bin/setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
        "--inh-caps=-all", "--no-new-privs", "--",
    ]  # fmt: skip


def _find(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
