# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Print as one line of JSON which devices can be opened. Runs in a container of the self-test.

Only the standard library is available there, and this file by itself:

    {"nodes": [[path, major, minor, errno], ...],    character devices in /dev; errno 0: it opened
     "planted": [[path, major, minor, errno], ...],  those that the self-test mounted beside itself
     "made": [[major, minor, errno], ...],           making a node of that number; errno 0: it was
     "nvml": {"error": words, "uuids": [uuid, ...]}, or null where there is no such library
     "environment": ["NAME=value", ...]}
"""

import ctypes
import errno
import json
import os
import stat
import sys
import typing

Seen = tuple[str, int, int, int]

# nvml.h of CUDA 13.0: lengths of buffers, and codes of GPUs and slots without MIG.
_UUID_BYTES: typing.Final = 96
_MIG_ENABLED: typing.Final = 1
_LIBRARY: typing.Final = "libnvidia-ml.so.1"


def look(folder: str) -> list[Seen]:
    """All character devices in a folder and below it, and what opening each answers."""
    found: list[Seen] = []
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(place, name)  # noqa: PTH118 no pathlib: as little as possible
            status = os.lstat(path)
            if stat.S_ISCHR(status.st_mode):
                number = status.st_rdev
                found.append((path, os.major(number), os.minor(number), _opened(path)))
    return found


def _opened(path: str) -> int:
    """Return 0, or the number of the error."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or -1
    return 0


def make(number: str) -> tuple[int, int, int]:
    """Return what making a node with a number, such as `195:0`, answers."""
    major, minor = map(int, number.split(":"))
    path = f"/tmp/gpu-ci-{major}-{minor}"  # noqa: S108 the container's own
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
    except OSError as error:
        return major, minor, error.errno or -1
    return major, minor, 0


class _NvmlError(Exception):
    """NVML refused; the text is its message."""


class _Nvml:
    """The few questions that show which GPUs a container has."""

    def __init__(self) -> None:
        """Load NVML.

        Raises:
            OSError: there is no NVML, or it can't be loaded.
        """
        self._library = ctypes.CDLL(_LIBRARY)

    def uuids(self) -> list[str]:
        """Return the UUIDs of all GPUs, each followed by those of its MIG devices."""
        self._call("nvmlInit_v2")
        found: list[str] = []
        for index in range(self._number("nvmlDeviceGetCount_v2")):
            gpu = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(gpu))
            found += [self._uuid(gpu), *self._mig(gpu)]
        return found

    def _mig(self, gpu: ctypes.c_void_p) -> list[str]:
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self._library.nvmlDeviceGetMigMode(gpu, ctypes.byref(mode), ctypes.byref(pending))
        if code or mode.value != _MIG_ENABLED:
            return []
        found: list[str] = []
        for slot in range(self._number("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            part = ctypes.c_void_p()
            ask = self._library.nvmlDeviceGetMigDeviceHandleByIndex
            if not ask(gpu, slot, ctypes.byref(part)):
                found.append(self._uuid(part))
        return found

    def _uuid(self, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_UUID_BYTES)
        self._call("nvmlDeviceGetUUID", device, text, _UUID_BYTES)
        return text.value.decode()

    def _number(self, function: str, *arguments: object) -> int:
        answer = ctypes.c_uint()
        self._call(function, *arguments, ctypes.byref(answer))
        return answer.value

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            words = self._library.nvmlErrorString
            words.restype = ctypes.c_char_p
            raise _NvmlError(f"{function}: {words(code).decode()}")


def ask_nvml() -> dict[str, object] | None:
    """Return what NVML lists; None if there is no NVML."""
    try:
        nvml = _Nvml()
    except OSError as error:
        # The loader gives no errno, and the same message if another library is missing.
        absent = str(error).startswith(f"{_LIBRARY}: ") and os.strerror(errno.ENOENT) in str(error)
        return None if absent else {"error": str(error), "uuids": []}
    try:
        return {"error": "", "uuids": nvml.uuids()}
    except _NvmlError as error:
        return {"error": str(error), "uuids": []}


def main(planted: str, *numbers: str) -> None:
    """Print everything, including whether nodes with these numbers can be made."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        entries = file.read().decode(errors="replace").split("\0")
    whole = {
        "nodes": look("/dev"),
        "planted": look(planted),
        "made": [make(number) for number in numbers],
        "nvml": ask_nvml(),
        "environment": [entry for entry in entries if entry],
    }
    sys.stdout.write(json.dumps(whole) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
