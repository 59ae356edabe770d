# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make a container's root from this machine's own Python: without image, network or download.

The interpreter and its libraries are bind-mounted one by one into an otherwise empty folder. A
runtime can so still add a driver's libraries beside them and run its hooks.
"""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_runtime.rootfs import MARKER
from machine import files, process

# The folder of our programs in a container.
PROGRAMS: typing.Final = pathlib.PurePosixPath("/.gpu-ci")

# A user namespace can't clear flags that the kernel has set on a file system. To mount it
# read-only there, these flags have to be named too (mount_namespaces(7)).
_READ_ONLY: typing.Final = ("bind", "ro", "nosuid", "nodev")

# Names in / that are links into /usr on machines with a merged /usr (systemd, file-hierarchy(7)).
_MERGED: typing.Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ASK = """
import importlib, json, os, sys, sysconfig
for name in sys.argv[1:]:
    importlib.import_module(name)
with open("/proc/self/maps") as file:
    mapped = {line.split(None, 5)[5].rstrip("\\n") for line in file if line.count("/")}
print()
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "stdlib": sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}),
    "own": sys.prefix if sys.prefix != sys.base_prefix else "",
    "mapped": sorted(mapped),
}))
"""


@dataclasses.dataclass(frozen=True)
class Mount:
    """A file, folder or device node of this machine that a container gets.

    Attributes:
        source: its path here.
        destination: its path in the container.
        options: as in config.json; without `ro` it is writable.
    """

    source: str
    destination: str
    options: tuple[str, ...] = _READ_ONLY


def interpreter(
    python: str = wrapper.PYTHON, modules: collections.abc.Iterable[str] = ()
) -> tuple[Mount, ...]:
    """Return the mounts for a Python that imports these modules: program, library, shared objects.

    The folder of a virtual environment is left out; it has to be mounted in addition.

    Args:
        python: path of the interpreter.
        modules: the modules that its program imports.

    Raises:
        machine.process.CommandError: it can't be run, or lacks a module.
    """
    done = process.run([python, "-I", "-c", _ASK, *modules], timeout=120)
    said = json.loads(done.stdout.splitlines()[-1])
    folders = [pathlib.Path(path) for path in (*said["stdlib"], said["own"]) if path]
    libraries = [
        path
        for path in map(pathlib.Path, said["mapped"])
        if ".so" in path.name and not any(map(path.is_relative_to, folders))
    ]
    names = [pathlib.Path(path) for path in (said["program"], python)]
    names = [path for path in names if not any(map(path.is_relative_to, folders))]
    for library in libraries:
        stem = library.name.partition(".so")[0]
        names += [path for path in library.parent.glob(f"{stem}.so*") if path.resolve() == library]
    # The name under which programs ask the kernel for the loader.
    loaders = [*pathlib.Path("/").glob("lib*/ld*.so*")]
    names += [path for path in loaders if path.resolve() in libraries]
    paths = dict.fromkeys([*said["stdlib"], *map(str, [*names, *libraries])])
    return tuple(Mount(path, path) for path in paths)


def make(folder: pathlib.Path, programs: collections.abc.Mapping[str, str], owner: int) -> None:
    """Make a root with only these programs of ours in PROGRAMS.

    Args:
        folder: where; must not exist.
        programs: names and texts of the programs.
        owner: number of the user that the container's root is; the runtime makes mount points as
            that user.
    """
    files.ensure_directory(folder)
    for name in _MERGED:
        link = pathlib.Path("/", name)
        if link.is_symlink():
            files.ensure_symlink(folder / name, link.readlink())
    for name in ("etc", "tmp"):
        files.ensure_directory(folder / name)
    place = folder / PROGRAMS.relative_to("/")
    files.ensure_directory(place)
    for name, text in programs.items():
        files.ensure_file(place / name, text)
    files.hand_over(folder, owner)
    files.ensure_file(folder / MARKER, "")  # root's own: no container could have made it
    # It is not an image's volume, which the GPU runtime requires of a task's root.
    files.ensure_file(folder / MARKER, "")
