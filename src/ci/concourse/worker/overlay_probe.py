# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Makes a volume and a layer over it as Concourse does, changes the layer, and removes both.

Run as a program with only the standard library, in a mount namespace of its own: whatever ends it,
no mount is left. `overlay_probe.py overlay|naive FOLDER` ends with 0 if all of that works; else it
prints {"errno": number, or 0, "text": what failed} as JSON and ends with 1.

The mounts are those of baggageclaim, Concourse's part for volumes (95872ce1a
worker/baggageclaim/volume/driver/overlay_linux.go and naive.go), by the same system call: mount(8)
uses others from util-linux 2.39 on, whose errors differ.
"""

import collections.abc
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import typing

_METACOPY: typing.Final = pathlib.Path("/sys/module/overlay/parameters/metacopy")
_MS_BIND: typing.Final = 0x1000  # Linux include/uapi/linux/mount.h


def overlay(folder: pathlib.Path) -> None:
    """Layer by bind and overlay mounts.

    Raises:
        OSError: a step of it failed.
    """
    layers, parent, child = folder / "layers", folder / "parent", folder / "child"
    for place in (layers / "parent", layers / "child", layers / "work/child", parent, child):
        place.mkdir(parents=True)
    options = f"lowerdir={parent},upperdir={layers / 'child'},workdir={layers / 'work/child'}"
    if _METACOPY.exists():
        options += ",metacopy=on"
    with _mounted(str(layers / "parent"), parent, "", _MS_BIND, ""):
        _fill(parent)
        with _mounted("overlay", child, "overlay", 0, options):
            _change(parent, child)


def naive(folder: pathlib.Path) -> None:
    """Layer by copying.

    Raises:
        OSError: a step of it failed.
    """
    parent, child = folder / "parent", folder / "child"
    parent.mkdir()
    _fill(parent)
    argv = ["/usr/bin/cp", "-a", f"{parent}/.", str(child)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(0, done.stderr.strip() or f"cp ended with {done.returncode}")
    _change(parent, child)


def _fill(parent: pathlib.Path) -> None:
    (parent / "folder").mkdir()
    for name in ("file", "folder/inner"):
        (parent / name).write_text("parent's")


def _change(parent: pathlib.Path, child: pathlib.Path) -> None:
    """What makes an overlay note more than a file's content, and needs rights for it."""
    (child / "file").chmod(0o600)
    (child / "file").rename(child / "renamed")
    (child / "renamed").write_text("child's")
    shutil.rmtree(child / "folder")
    (child / "folder").mkdir()
    seen = [sorted(path.name for path in child.iterdir()), [*(child / "folder").iterdir()]]
    texts = [(child / "renamed").read_text(), (parent / "file").read_text()]
    if seen != [["folder", "renamed"], []] or texts != ["child's", "parent's"]:
        raise OSError(0, "the kernel mixes the layer with the folder below it")


@contextlib.contextmanager
def _mounted(
    source: str, target: pathlib.Path, kind: str, flags: int, options: str
) -> collections.abc.Generator[None]:
    what, words = kind or "bind", map(os.fsencode, (source, target, kind))
    _call(f"mount of a volume ({what})", "mount", *words, flags, os.fsencode(options))
    try:
        yield
    finally:
        _call(f"umount of a volume ({what})", "umount2", os.fsencode(target), 0)


def _call(what: str, name: str, *arguments: bytes | int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main(driver: str, place: str) -> int:
    """Try it in a new folder there, which is removed; return the exit status."""
    loaded = _METACOPY.exists()
    try:
        for _ in range(2):
            with tempfile.TemporaryDirectory(prefix=".layers-", dir=place) as folder:
                {"overlay": overlay, "naive": naive}[driver](pathlib.Path(folder))
            # The first overlay of a boot loads the module; the worker will find it loaded.
            if _METACOPY.exists() == loaded:
                break
    except OSError as error:
        sys.stdout.write(json.dumps({"errno": error.errno, "text": error.strerror or str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
