# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make the virtual environment with PyTorch and ONNX Runtime for the compute checks.

It is on the worker, outside the charm: only these checks need its gigabytes. Its packages are
locked with their hashes in kits/, in one lock for each major version of CUDA.
"""

import collections.abc
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import platform
import shutil
import sys
import threading
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model import versions
from gpu_selftest import results
from gpu_selftest.check import Progress
from gpu_selftest.compute import wheels
from machine import files, packages, process

_KITS: typing.Final = pathlib.Path(__file__).parent / "kits"
_TIMEOUT: typing.Final = 3600.0
_TELL_EVERY: typing.Final = 10.0
_GIB: typing.Final = 1 << 30
# In addition to the kit's own size.
_SPARE_GIB: typing.Final = 1.0


class UnavailableError(Exception):
    """The environment can't be made. The text says why and what the operator does about it."""


@dataclasses.dataclass(frozen=True)
class Kit:
    """Packages that fit together and one major version of CUDA.

    Attributes:
        name: the name of its files in kits/.
        cuda: the lowest CUDA version of a driver that runs it.
        python: the lowest version of Python for which all its packages are built.
        download_gib: the size of the download, in GiB.
        installed_gib: the size on disk with the downloads, in GiB.
    """

    name: str
    cuda: tuple[int, int]
    python: tuple[int, int]
    download_gib: float
    installed_gib: float

    @property
    def lock(self) -> pathlib.Path:
        """The lock file: exact versions with their hashes."""
        return _KITS / f"{self.name}.txt"

    @property
    def asked(self) -> tuple[str, ...]:
        """The packages that were locked, as pip names them: `torch==2.14.1`."""
        lines = (_KITS / f"{self.name}.in").read_text(encoding="utf-8").splitlines()
        return tuple(line for line in lines if not line.startswith("#"))


# The newest first. A driver runs builds for its own major version of CUDA or an earlier one; 13.x
# needs branch 580 or later, 12.x branch 525:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html. PyPI has one
# build of each version of PyTorch: 2.9.1 is for CUDA 12.8, 2.14.1 for CUDA 13.0 (Requires-Dist).
KITS: typing.Final = (
    Kit("cuda13", cuda=(13, 0), python=(3, 11), download_gib=3.1, installed_gib=5.6),
    Kit("cuda12", cuda=(12, 0), python=(3, 10), download_gib=4.1, installed_gib=7.1),
)


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment that can be used.

    Attributes:
        folder: its folder.
        key: names everything in it; measurements with different keys can't be compared.
    """

    folder: pathlib.Path
    key: str

    @property
    def python(self) -> str:
        """Absolute path of its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def scratch(self) -> pathlib.Path:
        """The folder for the files of a program that works in it; it exists only meanwhile."""
        return self.folder / "scratch"

    @property
    def command(self) -> list[str]:
        """The command of its interpreter, which writes no bytecode into the packages' folders."""
        return [self.python, "-I", "-X", f"pycache_prefix={self.folder / 'pycache'}"]


def kit_for(cuda: str, python: tuple[int, int]) -> Kit:
    """Return the kit that fits a driver and a Python.

    Args:
        cuda: highest CUDA version of the driver, such as `13.0`; empty if no GPU is used.
        python: such as (3, 11).

    Raises:
        UnavailableError: the driver is too old for all kits.
    """
    built = [kit for kit in KITS if kit.python <= python]
    if not cuda:
        return built[0]
    has = versions.numbers(cuda)
    fits = [kit for kit in built if kit.cuda <= has]
    if not fits:
        raise UnavailableError(
            f"the driver supports CUDA {cuda} at most, but the test needs "
            f"{'.'.join(map(str, KITS[-1].cuda))}: update the driver to branch 525 or later"
        )
    return fits[0]


def ensure(
    cuda: str,
    archive: str,
    application: str,
    progress: Progress,
    home: pathlib.Path = results.HOME,
) -> Environment:
    """Make the environment that fits this driver, unless it is already complete.

    Args:
        cuda: as for kit_for.
        archive: path of the charm resource selftest-wheels; empty: install from the package index
            in /etc/pip.conf, through the model's proxies.
        application: the name of this unit's application, for the remedy.
        progress: called with each step.
        home: the folder of environments, of which there is one at a time.

    Raises:
        UnavailableError: it can't be made.
    """
    kit = kit_for(cuda, sys.version_info[:2])
    try:
        # An operator who has to give a resource, but has none, gives an empty file.
        archive = archive if archive and pathlib.Path(archive).stat().st_size else ""
        key = _key(kit, archive)
    except OSError as error:
        raise UnavailableError(f"selftest-wheels can't be read: {error}") from error
    here = Environment(home / f"venv-{key}", key)
    stamp = here.folder / "complete"
    if stamp.exists():
        return here
    remove(home)
    files.ensure_directory(home)
    _check_room(kit, home)
    try:
        _make(here, kit, archive, progress)
    except (wheels.ArchiveError, packages.PackageError, process.CommandError) as error:
        files.ensure_absent(here.folder)
        said = _last_words(error) if isinstance(error, process.CommandError) else str(error)
        raise UnavailableError(f"{said}. {_how_to_attach(kit, application)}") from error
    files.ensure_file(stamp, f"{key}\n")
    return here


def remove(home: pathlib.Path = results.HOME) -> bool:
    """Remove what was installed, several gigabytes. Return True if there was anything."""
    # An earlier revision had scratch beside the environment, and left it if it was killed.
    found = [*home.glob("venv-*"), *home.glob("scratch")]
    for folder in found:
        files.ensure_absent(folder)
    return bool(found)


def _check_room(kit: Kit, home: pathlib.Path) -> None:
    free = shutil.disk_usage(home).free / _GIB
    needed = kit.download_gib + kit.installed_gib + _SPARE_GIB
    if free < needed:
        raise UnavailableError(
            f"installing PyTorch needs {needed:.1f} GiB, and {home} has {free:.1f} GiB free: free "
            "some space there"
        )


def _key(kit: Kit, archive: str) -> str:
    digest = hashlib.sha256(str(sys.version_info[:2]).encode())
    if archive:
        # Juju gives each revision of a resource another file; reading all of it takes minutes.
        found = pathlib.Path(archive).stat()
        digest.update(f"{archive} {found.st_size} {found.st_mtime_ns}".encode())
    else:
        digest.update(kit.lock.read_bytes())
    return f"{'wheels' if archive else kit.name}-{digest.hexdigest()[:12]}"


def _make(here: Environment, kit: Kit, archive: str, progress: Progress) -> None:
    progress("Making a virtual environment for PyTorch")
    packages.ensure_installed("python3-venv")
    process.run([wrapper.PYTHON, "-m", "venv", str(here.folder)], timeout=120)
    # The download is larger than a /tmp in memory may be.
    scratch = here.scratch
    files.ensure_directory(scratch)
    if archive:
        wanted = [name.partition("==")[0] for name in kit.asked]
        folders = wheels.unpack(pathlib.Path(archive), scratch, progress)
        source = ["--no-index", *(f"--find-links={folder}" for folder in folders), *wanted]
    else:
        source = ["--require-hashes", "--only-binary=:all:", "--requirement", str(kit.lock)]
    argv = [
        here.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
        "--no-cache-dir", "--no-compile", "--progress-bar=off", "--quiet", *source,
    ]  # fmt: skip
    with _told(here, kit, "unpacked" if archive else "downloaded", progress):
        process.run(argv, timeout=_TIMEOUT, env={"TMPDIR": str(scratch)})
    files.ensure_absent(scratch)
    progress("Loading PyTorch and ONNX Runtime")
    load = "import numpy, onnx, onnxruntime, torch"
    process.run([*here.command, "-c", load], timeout=300)


@contextlib.contextmanager
def _told(
    here: Environment, kit: Kit, before: str, progress: Progress
) -> collections.abc.Generator[None]:
    """Report how far pip is while it works, by what has arrived on disk.

    Args:
        here: the environment that pip installs.
        kit: its packages.
        before: what happens to the wheels before they are installed.
        progress: called with each report.
    """
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_TELL_EVERY):
            total, scratch = (_gib(path) for path in (here.folder, here.scratch))
            if total - scratch < 0.2:
                arrived, about, what = scratch, kit.download_gib, before
            else:
                arrived, about, what = total - scratch, kit.installed_gib, "installed"
            progress(f"PyTorch and ONNX Runtime: {what} {arrived:.1f} of about {about} GiB")

    watcher = threading.Thread(target=tell, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _gib(folder: pathlib.Path) -> float:
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves and removes files meanwhile
                size += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 tens of thousands
    return size / _GIB


def _last_words(error: process.CommandError) -> str:
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("ERROR")] or lines
    return f"PyTorch can't be installed: {told[-1] if told else error}".rstrip(".")


def _how_to_attach(kit: Kit, application: str) -> str:
    """Return how to install without a package index, as commands."""
    version = ".".join(map(str, sys.version_info[:2]))
    asked = " ".join(f"'{name}'" for name in kit.asked)
    return (
        "Check the network and the proxies (`juju model-config juju-https-proxy`), or attach "
        f"wheels: on a machine of this architecture ({platform.machine()}) with Python {version} "
        "and a network, run `python3 -m pip "
        f"download --only-binary=:all: --dest wheels {asked} && tar czf wheels.tar.gz wheels`, "
        f"then `juju attach-resource {application} selftest-wheels=wheels.tar.gz`"
    )
