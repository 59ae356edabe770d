# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A container's root made of this machine's own Python: no image, no network, nothing to download.

The interpreter and its libraries are bind-mounted one by one into a folder that is empty else, so
that a runtime can still add a driver's libraries beside them, and run its hooks there.
"""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from gpu_agent import paths as wrapper
from gpu_runtime.rootfs import MARKER
from machine import files, process

# Where programs of ours lie in a container.
PROGRAMS: typing.Final = pathlib.PurePosixPath("/.gpu-ci")

# What the kernel may have set on a file system, a user namespace can't take away: to mount it
# read-only there, these have to be named too (mount_namespaces(7)).
_READ_ONLY: typing.Final = ("bind", "ro", "nosuid", "nodev")

# Names in / that are links into /usr, where the machine has it so (systemd, file-hierarchy(7)).
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
    """A file, folder or device node of this machine that a container gets too.

    Attributes:
        source: where it is here.
        destination: where it is there.
        options: as in config.json; without `ro` it can be written to.
    """

    source: str
    destination: str
    options: tuple[str, ...] = _READ_ONLY


def interpreter(
    python: str = wrapper.PYTHON, modules: collections.abc.Iterable[str] = ()
) -> tuple[Mount, ...]:
    """What a Python needs that imports these modules: itself, its library, those it has mapped.

    Of a virtual environment its own folder is left out, which has to be mounted besides.

    Args:
        python: path of the interpreter.
        modules: what its program imports.

    Raises:
        machine.process.CommandError: if it can't be asked, or has no such module.
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
    """Make a root with nothing but these programs of ours in PROGRAMS: name and text of each.

    Args:
        folder: where; not there yet.
        programs: their names and texts.
        owner: number of the user that the container's root is, as whom the runtime makes what is
            mounted on.
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
    # It is no image's volume, which the wrapper wants of a task's root.
    files.ensure_file(folder / MARKER, "")
