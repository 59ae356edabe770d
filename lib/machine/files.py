# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Write files, directories and links atomically, and only if they differ from what is wanted."""

import os
import pathlib
import pwd
import shutil
import stat


def read_text(path: pathlib.Path) -> str | None:
    """Return the text of a file; None if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the entries of a directory, sorted by name; empty if there is no directory.

    Raises:
        OSError: it can't be read, so that its content is unknown.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def ensure_file(
    path: pathlib.Path, content: str | bytes, *, mode: int = 0o644, owner: str | None = None
) -> bool:
    """Make a regular file with this content. Its directory must exist.

    No reader ever sees half of it, or any of it with another mode or owner.

    Args:
        path: the file.
        content: all of it.
        mode: the permissions, whatever the umask.
        owner: the name of the user who owns it, with the user's group; None for the caller's.

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
    """Replace the content of another owner's file; a link to it, mode, owner and group stay.

    No reader ever sees half of it.

    Raises:
        FileNotFoundError: there is none.
    """
    place = path.resolve()
    found = place.stat()
    _replace(place, content, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def _replace(path: pathlib.Path, data: bytes, mode: int, uid: int, gid: int) -> None:
    new = path.with_name(f".{path.name}.new")
    # Always the same name, so that killed hooks leave at most one such file behind.
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
        new.unlink()  # it may have used the last free space
        error.filename = str(path)  # an error of write has no file name
        raise
    new.replace(path)


def shorten(path: pathlib.Path, content: str) -> None:
    """Shorten a file in place, which needs no space on a full disk.

    A reader may see half of it.

    Raises:
        ValueError: the new content is not shorter.
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
    """Overwrite a line near the beginning of a file with spaces; the file may be very large.

    Args:
        path: the file.
        line: the line, without its end.
        within: how many bytes are searched.

    Returns:
        Whether the line was there.
    """
    with path.open("r+b") as file:
        at = file.read(within).find(b"\n" + line + b"\n")
        if at >= 0:
            file.seek(at + 1)
            file.write(b" " * len(line))
    return at >= 0


def ensure_directory(path: pathlib.Path, *, mode: int = 0o755, owner: str | None = None) -> bool:
    """Make a directory and missing parents (mode 0755). Return True if that changed anything."""
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
    """Make a symbolic link, or switch it in one step. Return True if that changed anything."""
    if path.is_symlink() and os.readlink(path) == str(target):  # noqa: PTH115 a Path drops "./"
        return False
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)
    return True


def hand_over(path: pathlib.Path, uid: int) -> None:
    """Give a directory with its content to a user, and to the group with that number."""
    for folder, _, names in os.walk(path):
        for name in (".", *names):
            os.lchown(pathlib.Path(folder, name), uid, uid)


def move(path: pathlib.Path, destination: pathlib.Path) -> None:
    """Rename a file or directory on the same file system, to a name that is not in use."""
    path.rename(destination)


def ensure_absent(path: pathlib.Path) -> bool:
    """Remove a file, a link (not its target) or a whole directory. Return True if it existed.

    A mount point belongs to the operator: only its content is removed.
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
    """Remove a directory if it is empty. Return True if that changed anything."""
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
