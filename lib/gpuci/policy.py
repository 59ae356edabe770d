# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""policy.json: what the charm allows tasks on this worker to have. Written by it, read here."""

from __future__ import annotations

from gpuci.files import read_object
from gpuci.refuse import Refused
from gpuci.shapes import items, table, text

VERSION = 1


class Device:
    """One device as it is handed out: a GPU, or a MIG device of one.

    Attributes:
        index: NVML's index of the GPU when the policy was written.
        uuid: `GPU-...` or `MIG-...`.
        model: the GPU's product name.
    """

    __slots__ = ("index", "model", "uuid")

    def __init__(self, index: int, uuid: str, model: str) -> None:
        self.index = index
        self.uuid = uuid
        self.model = model


class Policy:
    """What the charm allows.

    Attributes:
        nvidia_runtime: absolute path of nvidia-container-runtime.
        config_home: the folder that holds its private `nvidia-container-runtime/config.toml`.
        devices: what tasks may have, each UUID once.
    """

    __slots__ = ("config_home", "devices", "nvidia_runtime")

    def __init__(self, nvidia_runtime: str, config_home: str, devices: list[Device]) -> None:
        self.nvidia_runtime = nvidia_runtime
        self.config_home = config_home
        self.devices = devices


def read(path: str) -> Policy | None:
    """The policy in the file at `path`; None where tasks get no GPU: no file, or no GPU in it.

    Raises:
        Refused: there is one that can't be read or followed.
    """
    try:
        found = read_object(path)
        return _parse(found) if found.get("gpus") != [] else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Refused(
            f"this worker's GPU policy {path} cannot be used ({error}), so this task cannot be "
            "given its GPU; the charm writes that file again at its next event, within minutes"
        ) from error


def _parse(found: dict[str, object]) -> Policy:
    if found.get("version") != VERSION:
        raise ValueError(f"version is {found.get('version')!r}, not {VERSION}")
    if found.get("allocation") != "shared":
        raise ValueError(f"allocation is {found.get('allocation')!r}, not 'shared'")
    devices: dict[str, Device] = {}
    for entry in items(found.get("gpus")):
        gpu = table(entry)
        index, model = gpu.get("index"), text(gpu.get("model"))
        uuids = items(gpu.get("devices"))
        if not isinstance(index, int) or gpu.get("vendor") != "nvidia":
            raise ValueError(f"{entry!r} is no GPU that this wrapper can hand out")
        for uuid in map(text, uuids):
            devices.setdefault(_checked_uuid(uuid), Device(index, uuid, model))
    if not devices:
        raise ValueError(
            "its GPUs have no device to hand out; where MIG is on, create MIG devices"
        )
    paths = text(found.get("nvidia_runtime")), text(found.get("config_home"))
    for path in paths:
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is no absolute path")
    return Policy(*paths, list(devices.values()))


def _checked_uuid(uuid: str) -> str:
    """`uuid`, if it can mean nothing but one device: no list, no `all`, no index."""
    kind, dash, rest = uuid.partition("-")
    if kind in {"GPU", "MIG"} and dash and rest.replace("-", "").replace("/", "").isalnum():
        return uuid
    raise ValueError(f"{uuid!r} is no UUID of a GPU or MIG device")
