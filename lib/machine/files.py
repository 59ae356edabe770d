# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Files, directories and links, each made to be as asked, atomically and only when it differs."""

import os
import pathlib
import pwd
import shutil
import stat


def read_text(path: pathlib.Path) -> str | None:
    """The text of a file; None if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
    """What is in a directory, in the order of the names; nothing where there is none.

    Raises:
        OSError: it can't be read, which does not say that nothing is in it.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def ensure_file(
    path: pathlib.Path, content: str | bytes, *, mode: int = 0o644, owner: str | None = None
) -> bool:
    """Make a regular file of this content. Its directory must exist.

    No reader ever sees half of it, and nobody sees any of it under another mode or owner.

    Args:
        path: where.
        content: all of it.
        mode: the permissions, whatever the umask.
        owner: the name of the user that it and its group belong to; None for the caller's.

    Returns:
        Whether anything had to be changed.
    """
    data = content.encode() if isinstance(content, str) else content
    uid, gid = _ids(owner)
    if _is_as_asked(path, stat.S_IFREG | mode, uid, gid) and path.read_bytes() == data:
        return False
    _replace(path, data, mode, uid, gid)
    return True


def rewrite(path: pathlib.Path, content: bytes) -> None:
    """Give a file of others' another content. A link to it, its mode, owner and group stay.

    No reader ever sees half of it.

    Raises:
        FileNotFoundError: there is none.
    """
    place = path.resolve()
    found = place.stat()
    _replace(place, content, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def _replace(path: pathlib.Path, data: bytes, mode: int, uid: int, gid: int) -> None:
    new = path.with_name(f".{path.name}.new")
    # Always the same name, so that a hook that was killed leaves no litter behind.
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        new.unlink()  # It may have taken the last room that there was.
        error.filename = str(path)  # A write does not name it.
        raise
    new.replace(path)


def shorten(path: pathlib.Path, content: str) -> None:
    """Give a file less content in its place, which takes no room on a disk that is full.

    A reader may see half of it.

    Raises:
        ValueError: it is not less.
    """
    data = content.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "wb") as file:
        if len(data) > os.fstat(descriptor).st_size:
            raise ValueError(f"{path} would be longer")
        file.write(data)
        file.flush()
        file.truncate()
        os.fsync(descriptor)


def blank_line(path: pathlib.Path, line: bytes, within: int) -> bool:
    """Have spaces for a line near the beginning of a file, which may be as large as its disk.

    Args:
        path: of the file.
        line: without its end.
        within: how many bytes are looked at.

    Returns:
        Whether it was there.
    """
    with path.open("r+b") as file:
        at = file.read(within).find(b"\n" + line + b"\n")
        if at >= 0:
            file.seek(at + 1)
            file.write(b" " * len(line))
    return at >= 0


def ensure_directory(path: pathlib.Path, *, mode: int = 0o755, owner: str | None = None) -> bool:
    """Make a directory, and any above it that is missing (mode 0755). Return True if changed."""
    uid, gid = _ids(owner)
    if _is_as_asked(path, stat.S_IFDIR | mode, uid, gid):
        return False
    if not path.parent.is_dir():
        ensure_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    os.chown(path, uid, gid)
    path.chmod(mode)
    return True


def ensure_symlink(path: pathlib.Path, target: str | pathlib.Path) -> bool:
    """Make a symbolic link, or switch it in one step. Return True if changed."""
    if path.is_symlink() and os.readlink(path) == str(target):  # noqa: PTH115 a Path drops "./"
        return False
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)
    return True


def hand_over(path: pathlib.Path, uid: int) -> None:
    """Give a directory and all in it to a user, and to the group of that number."""
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            os.lchown(pathlib.Path(folder, name), uid, uid)


def move(path: pathlib.Path, destination: pathlib.Path) -> None:
    """Give a file or directory another name on the same file system, where nothing has it yet."""
    path.rename(destination)


def ensure_absent(path: pathlib.Path) -> bool:
    """Remove a file, a link (not its target) or a whole directory. Return True if changed.

    Of a directory that is a mount point, which is the operator's, only the content is removed.
    """
    if path.is_mount():
        inside = list(path.iterdir())
        for entry in inside:
            ensure_absent(entry)
        return bool(inside)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        return True
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_if_empty(path: pathlib.Path) -> bool:
    """Remove a directory if nothing is in it. Return True if changed."""
    if not path.is_dir() or path.is_mount() or any(path.iterdir()):
        return False
    path.rmdir()
    return True


def _ids(owner: str | None) -> tuple[int, int]:
    if owner is None:
        return os.geteuid(), os.getegid()
    user = pwd.getpwnam(owner)
    return user.pw_uid, user.pw_gid


def _is_as_asked(path: pathlib.Path, mode: int, uid: int, gid: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (found.st_mode, found.st_uid, found.st_gid) == (mode, uid, gid)
