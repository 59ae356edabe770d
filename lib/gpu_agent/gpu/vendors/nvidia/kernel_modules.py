# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find, load and unload NVIDIA's kernel modules."""

import errno
import json
import logging
import pathlib
import re
import struct
import typing

from gpu_agent.gpu.vendors.nvidia import module_version as nvidia_module
from machine import files, process, procfs

ROOT: typing.Final = pathlib.Path("/")
# modprobe's message when it could not load the module, and the boot in which that was.
_REFUSED: typing.Final = "var/lib/gpu-ci/driver-refused.json"
_BLACKLIST: typing.Final = "etc/modprobe.d/gpu-ci-nouveau.conf"
_NO_NOUVEAU: typing.Final = """\
# Written by gpu-ci-worker: nouveau would take the GPUs before NVIDIA's driver does.
blacklist nouveau
options nouveau modeset=0
"""
_MODPROBE: typing.Final = "/usr/sbin/modprobe"
# In seconds. A machine of eight cards takes some ten.
_TIMEOUT: typing.Final = 120.0
# A module that uses another comes before it (NVIDIA open-gpu-kernel-modules 580, Kbuild).
_STACK: typing.Final = ("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
# The folders of modules of Ubuntu's linux-modules-nvidia, dkms, and NVIDIA's own installer.
_PLACES: typing.Final = (
    "updates/dkms/nvidia.ko*",
    "updates/nvidia.ko*",
    "extra/nvidia.ko*",
    "kernel/nvidia-*/nvidia.ko*",
    "kernel/drivers/video/nvidia.ko*",
)

_log = logging.getLogger(__name__)


def text(path: pathlib.Path) -> str:
    """Return a file's text without surrounding white space; empty if there is no file.

    Raises:
        OSError: it can't be read, so that its content is unknown.
    """
    try:
        return path.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:  # in /sys, of a device that has just gone
            return ""
        raise


def kernel(root: pathlib.Path) -> str:
    """Return the running kernel's release, such as `6.8.0-60-generic`."""
    return text(root / "proc/sys/kernel/osrelease")


def next_kernel(root: pathlib.Path) -> str:
    """Return the kernel release of the next boot; empty if /boot has none.

    It is the target of /boot/vmlinuz, which Ubuntu's kernels set to the last one installed. If
    there is no such link it is the highest, which is grub's first entry.
    """
    images = {
        path.name for path in files.entries(root / "boot") if path.name.startswith("vmlinuz-")
    }
    images = {name for name in images if not name.endswith((".old", ".signed", ".dpkg-new"))}
    link = root / "boot/vmlinuz"
    target = link.readlink().name if link.is_symlink() else ""
    found = target if target in images else max(images, key=_natural, default="")
    return found.removeprefix("vmlinuz-")


def on_disk(root: pathlib.Path, kernels: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return which of these kernels have nvidia.ko, with the module's version or an empty one."""
    found = {name: _module(root, name) for name in kernels if name}
    return tuple((name, _version(root, name, path)) for name, path in found.items() if path)


def is_loaded(module: str = "nvidia") -> bool:
    """Return whether a module is loaded."""
    return (ROOT / "sys/module" / module).is_dir()


def loaded(root: pathlib.Path) -> str:
    """Return the version of the loaded nvidia.ko; empty if there is none."""
    return nvidia_module.version(lambda name: text(root / name))


def refused(root: pathlib.Path) -> str:
    """Return modprobe's message if it could not load the module in this boot; or empty."""
    said = text(root / _REFUSED)
    if not said:
        return ""
    record: dict[str, str] = json.loads(said)
    return record["said"] if record["boot"] == procfs.boot_id(root / "proc") else ""


def load() -> bool:
    """Load the module unless it is loaded. Return True if that changed anything.

    modprobe's error message is kept: see refused.

    Raises:
        machine.process.CommandError: the machine had no time or memory for it.
    """
    if is_loaded():
        files.ensure_absent(ROOT / _REFUSED)
        return False
    argv = [_MODPROBE, "nvidia"]
    done = process.run(argv, timeout=_TIMEOUT, check=False)
    failure = process.CommandError(argv, done.returncode, done.stderr)
    if done.returncode and failure.starved:
        raise failure
    if done.returncode or not is_loaded():
        said = " / ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        _refuse(said or "modprobe nvidia succeeded, but the kernel does not have the module")
        return False
    files.ensure_absent(ROOT / _REFUSED)
    _add("nvidia_uvm")
    return True


def stack() -> tuple[str, ...]:
    """Return the loaded modules of NVIDIA's driver, in the order in which they can be unloaded."""
    return tuple(module for module in _STACK if is_loaded(module))


def unload(modules: tuple[str, ...]) -> bool:
    """Unload these modules, if only they themselves use each other.

    Returns:
        Whether all are out. If not, `add` loads the others again.
    """
    if any(_users(module) for module in modules):
        return False
    for module in modules:
        # Removing a module also removes the unused modules that it depends on.
        if is_loaded(module):
            done = process.run([_MODPROBE, "-r", module], timeout=_TIMEOUT, check=False)
            if done.returncode or is_loaded(module):
                _log.warning("%s stays loaded: %s", module, done.stderr.strip())
                return False
    return True


def add(modules: tuple[str, ...]) -> None:
    """Load these again, after nvidia itself; a failure is only logged."""
    if is_loaded():
        for module in modules:
            _add(module)


def oust_nouveau() -> bool:
    """Blacklist nouveau from the next boot on, and unload it now if it is not in use.

    Returns:
        Whether anything was changed. Nothing is changed if nouveau is not loaded.
    """
    if not is_loaded("nouveau"):
        return False
    changed = files.ensure_file(ROOT / _BLACKLIST, _NO_NOUVEAU)
    if text(ROOT / "sys/module/nouveau/refcnt") == "0":
        process.run([_MODPROBE, "-r", "nouveau"], timeout=_TIMEOUT, check=False)
        changed |= not is_loaded("nouveau")
    return changed


def release() -> bool:
    """Remove the files that this module has written. Return True if there were any."""
    gone = [files.ensure_absent(ROOT / name) for name in (_BLACKLIST, _REFUSED)]
    return any(gone)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that compares numbers in names as numbers: 6.8.0-9 before 6.8.0-60."""
    return [(int(part or 0), rest) for part, rest in re.findall(r"([0-9]*)([^0-9]*)", name)]


def _module(root: pathlib.Path, release: str) -> pathlib.Path | None:
    folder = root / "lib/modules" / release
    listed = re.findall(
        r"^(\S*?nvidia\.ko(?:\.(?:xz|zst|gz))?):", text(folder / "modules.dep"), re.MULTILINE
    )
    places = [
        folder / name for name in listed if pathlib.PurePath(name).name.startswith("nvidia.")
    ]
    places += [path for pattern in _PLACES for path in sorted(folder.glob(pattern))]
    return next((path for path in places if path.exists()), None)


def _version(root: pathlib.Path, release: str, module: pathlib.Path) -> str:
    """Return a module's version by dkms' folders or its own; empty if it is compressed."""
    if "dkms" in module.parts:
        for path in (root / "var/lib/dkms").glob(f"nvidia*/[0-9]*/{release}"):
            return path.parent.name
    match = re.search(rb"(?:^|\0)version=([0-9.]+)\0", _section(module, b".modinfo") + b"\0")
    return match.group(1).decode() if match else ""


def _section(path: pathlib.Path, name: bytes) -> bytes:
    """Return one section of a 64-bit little-endian ELF file (elf(5)); empty if it has none."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return b""
        (at,) = struct.unpack_from("<Q", head, 40)
        size, count, names = struct.unpack_from("<HHH", head, 58)
        file.seek(at)
        table = file.read(size * count)
        if size < 40 or len(table) < size * count or names >= count:
            return b""
        # sh_name, then past type, flags and address: sh_offset, sh_size.
        sections = [struct.unpack_from("<I20xQQ", table, size * n) for n in range(count)]
        file.seek(sections[names][1])
        strings = file.read(sections[names][2])
        for start, offset, length in sections:
            if strings[start:].partition(b"\0")[0] == name:
                file.seek(offset)
                return file.read(length)
    return b""


def _users(module: str) -> int:
    """The number of users of a loaded module, without modules that are unloaded with it."""
    folder = ROOT / "sys/module" / module
    holders = {path.name for path in files.entries(folder / "holders")} & set(_STACK)
    return int(text(folder / "refcnt") or 0) - len(holders)


def _add(module: str) -> None:
    if not is_loaded(module):
        done = process.run([_MODPROBE, module], timeout=_TIMEOUT, check=False)
        if done.returncode:
            _log.warning("modprobe %s: %s", module, done.stderr.strip())


def _refuse(said: str) -> None:
    record = ROOT / _REFUSED
    files.ensure_directory(record.parent)
    files.ensure_file(record, json.dumps({"boot": procfs.boot_id(), "said": said}) + "\n")
