# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What all processes of a test run share: programs that are compiled, archives, keys."""

import atexit
import collections.abc
import fcntl
import functools
import os
import pathlib
import shutil
import tempfile
import typing

# Names the folder that all processes of a run share.
_FOLDER: typing.Final = "GPUCI_TESTS_MADE"


def begin() -> pathlib.Path | None:
    """Make the folder of this run, for its processes too; None where a parent has made it."""
    if _FOLDER in os.environ:
        return None
    # Not pytest's, which no user of a container may enter.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gpuci-made-", dir="/var/tmp"))
    folder.chmod(0o711)
    os.environ[_FOLDER] = str(folder)
    return folder


def end(folder: pathlib.Path | None) -> None:
    """Remove the folder that `begin` has made."""
    if folder:
        del os.environ[_FOLDER]
        shutil.rmtree(folder, ignore_errors=True)


def made(name: str, make: collections.abc.Callable[[pathlib.Path], object]) -> pathlib.Path:
    """A file or folder that nobody changes, made by whoever wants it first; others wait.

    Args:
        name: what it is, the same for each who wants it.
        make: puts it at a path that does not exist yet.
    """
    if _FOLDER not in os.environ:
        atexit.register(end, begin())
    folder = pathlib.Path(os.environ[_FOLDER])
    target = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            new = folder / f"{name}.new"
            if new.is_dir():
                shutil.rmtree(new)
            make(new)
            new.rename(target)
    return target


def put(
    name: str, make: collections.abc.Callable[[pathlib.Path], object], target: pathlib.Path
) -> None:
    """Make a file or folder at a path where there is none: of a test run's, a copy."""
    if _FOLDER not in os.environ:  # A lab that a developer has brought up.
        make(target)
        return
    source = made(name, make)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


@functools.cache
def rsa_key(number: int) -> str:
    """A private key in the charm's form of PEM, another one for each number.

    It has 2048 bits: a key of 4096, as the charm makes, takes ten times as long to make and to
    load.
    """
    return made(f"key-{number}", _write_key).read_text()


def _write_key(path: pathlib.Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, none))
