# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""System users of our own."""

import pathlib
import pwd
import typing

from machine import process

# Stands in /etc/passwd beside a user that was made here, so that no other is ever removed.
_OURS: typing.Final = "gpu-ci-worker"


def exists(name: str) -> bool:
    """Whether there is a user of this name."""
    return _find(name) is not None


def ensure_user(name: str, home: pathlib.Path) -> bool:
    """Have a system user without a login, with a group of its own. Return True if made."""
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
    """What is before a program's arguments to run it as a user, who can become no other by it.

    It stays the child of who starts it, which can end with that.

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
