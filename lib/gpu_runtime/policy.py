# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""policy.json: what the charm allows tasks on this worker to have. Written by it, read here."""

from __future__ import annotations

import os

from gpu_runtime.device_vendors import VENDORS, Vendor
from gpu_runtime.json_files import read_object
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused

VERSION = 3
# How the ids of the containers begin that the self-test makes; Concourse's are UUIDs.
SELF_TEST_CONTAINER = "gpu-selftest-"


class Device:
    """One device as it is handed out: a GPU, or a MIG device of one.

    Attributes:
        index: the driver's index of the GPU when the policy was written.
        id: its UUID (`GPU-...`, `MIG-...`), or `PCI-<address>` where the maker gives none.
        gpu: the id of the GPU that it is, or is a part of.
        model: the GPU's product name.
        arch: its compute capability, such as `8.0`, and
        brand: its brand as NVIDIA_REQUIRE_* names it, such as `tesla`; empty: not known.
        nodes: paths of the device nodes that a container needs; empty where a runtime knows them.
        watched: paths of those device nodes that are nobody's but this device's: who has one open
            uses this device. Empty where there is none, as with a MIG device.
    """

    __slots__ = ("arch", "brand", "gpu", "id", "index", "model", "nodes", "watched")

    def __init__(
        self, index: int, name: str, gpu: str, model: str, nodes: list[str], watched: list[str]
    ) -> None:
        self.index = index
        self.id = name
        self.gpu = gpu
        self.model = model
        self.arch = self.brand = ""
        self.nodes = nodes
        self.watched = watched


class Policy:
    """What the charm allows.

    Attributes:
        exclusive: whether a GPU has one holder at a time; otherwise tasks share all.
        gpus_per_task: what a task gets that asks for no number.
        wait_timeout: how long a task may wait for its GPUs, in seconds.
        hijack_limit: how long after its step a process that somebody started in a container may
            keep its GPUs, in seconds; 0: as long as it runs.
        privileged: whether privileged tasks may have GPUs.
        vendor: how these GPUs are handed out.
        nvidia_runtime: absolute path of nvidia-container-runtime; empty for other makers' GPUs.
        config_home: the folder that holds its private `nvidia-container-runtime/config.toml`.
        driver: version of NVIDIA's driver when the policy was written, and
        cuda: the highest CUDA version of that driver; empty: not known.
        cordons: folders with a file `<GPU's id>.json` for each GPU that is out of use.
        devices: what tasks may have, each id once.
    """

    __slots__ = (
        "config_home", "cordons", "cuda", "devices", "driver", "exclusive", "gpus_per_task",
        "hijack_limit", "nvidia_runtime", "privileged", "vendor", "wait_timeout",
    )  # fmt: skip

    def __init__(self, found: dict[str, object]) -> None:
        """Take a policy apart.

        Raises:
            ValueError: `found` is no policy that can be followed.
        """
        if found.get("version") != VERSION:
            raise ValueError(f"version is {found.get('version')!r}, not {VERSION}")
        self.exclusive = _choice(found, "allocation", ("shared", "exclusive"))
        self.privileged = _choice(found, "privileged_tasks", ("no-gpu", "gpu"))
        self.gpus_per_task = _number(found, "gpus_per_task")
        self.wait_timeout = _number(found, "wait_timeout")
        self.hijack_limit = _number(found, "hijack_limit")
        vendor = VENDORS.get(text(found.get("vendor")))
        if vendor is None:
            raise ValueError(f"vendor is {found.get('vendor')!r}, not {' or '.join(VENDORS)}")
        self.vendor: Vendor = vendor
        self.nvidia_runtime = text(found.get("nvidia_runtime"))
        self.config_home = text(found.get("config_home"))
        self.driver, self.cuda = text(found.get("driver")), text(found.get("cuda"))
        if vendor.by_runtime:
            for path in (self.nvidia_runtime, self.config_home):
                _check_path(path)
        self.cordons = [text(folder) for folder in items(found.get("cordons"))]
        self.devices = _devices(items(found.get("gpus")), vendor)

    def cordoned(self, container: str = "") -> dict[str, str]:
        """The ids of the devices that are out of use for a container now, each with the reason.

        Raises:
            OSError: a folder of cordons can't be read.
        """
        reasons: dict[str, str] = {}
        for folder in self.cordons:
            reasons |= cordons(folder, container)
        return {
            device.id: reasons.get(device.gpu) or reasons[device.id]
            for device in self.devices
            if device.gpu in reasons or device.id in reasons
        }


def read(path: str, noun: str = "task") -> Policy | None:
    """The policy in the file at `path`; None where nobody gets a GPU, since it names none.

    Args:
        path: the file.
        noun: what is told of it where it can't be read.

    Raises:
        Refused: it can't be read or followed. That it is missing is damage too: whoever asks here
            was installed with it.
    """
    try:
        found = read_object(path)
        return Policy(found) if found.get("gpus") != [] else None
    except (OSError, ValueError) as error:
        raise Refused(
            f"this worker can't tell which GPUs {noun}s may get: {path} cannot be used ({error}); "
            "it is written anew within minutes: run it again then"
        ) from error


def _choice(found: dict[str, object], name: str, words: tuple[str, str]) -> bool:
    """Whether the value of `name` is the second of `words`."""
    value = found.get(name)
    if value not in words:
        raise ValueError(f"{name} is {value!r}, not {' or '.join(words)}")
    return value == words[1]


def _number(found: dict[str, object], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}, not a number from 0 on")
    return value


def _devices(gpus: list[object], vendor: Vendor) -> list[Device]:
    users: dict[str, set[int]] = {}
    for place, gpu in enumerate(map(table, gpus)):
        for node in map(text, items(gpu.get("nodes"))):
            users.setdefault(node, set()).add(place)
    devices: dict[str, Device] = {}
    for entry in gpus:
        gpu = table(entry)
        index, model = gpu.get("index"), text(gpu.get("model"))
        if not isinstance(index, int):
            raise ValueError(f"{entry!r} is no GPU that this wrapper can hand out")
        nodes = [text(node) for node in items(gpu.get("nodes"))]
        if bool(nodes) == vendor.by_runtime:
            raise ValueError(f"GPU {index} has the device nodes {nodes}")
        for path in nodes:
            _check_path(path)
        whole = _checked_id(text(gpu.get("uuid")), vendor)
        minor = _minor(gpu)
        own = [f"/dev/nvidia{minor}"] if vendor.by_runtime and minor is not None else []
        own += [node for node in nodes if len(users[node]) == 1]
        for name in map(text, items(gpu.get("devices"))):
            watched = own if name == whole else []  # a part shares them with the other parts
            device = Device(index, _checked_id(name, vendor), whole, model, nodes, watched)
            device.arch, device.brand = text(gpu.get("arch")), text(gpu.get("brand"))
            devices.setdefault(name, device)
    if not devices:
        raise ValueError(
            "its GPUs have no device to hand out; where MIG is on, create MIG devices"
        )
    return list(devices.values())


def _minor(gpu: dict[str, object]) -> int | None:
    """The N of a GPU's /dev/nvidiaN; None where it is not known."""
    return None if gpu.get("minor") is None else _number(gpu, "minor")


def _checked_id(name: str, vendor: Vendor) -> str:
    """`name`, if it can mean nothing but one device: no list, no `all`, no index, no path."""
    for prefix in vendor.ids:
        rest = name[len(prefix) :]
        for mark in ":." if prefix == "PCI-" else "-/":
            rest = rest.replace(mark, "")
        if name.startswith(prefix) and rest.isalnum():
            return name
    raise ValueError(f"{name!r} is no id of a GPU or MIG device")


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is no absolute path")


def cordons(folder: str, container: str = "") -> dict[str, str]:
    """The ids that a folder of cordons takes out of use, each with what that GPU `is`.

    Args:
        folder: where.
        container: who wants to know; what the self-test or the watch took out the self-test may
            have, which finds out whether it is well again.

    Raises:
        OSError: the folder can't be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    testing = container.startswith(SELF_TEST_CONTAINER)
    entries = {
        name[: -len(".json")]: _entry(f"{folder}/{name}")
        for name in names
        if name.endswith(".json")
    }
    return {
        name: why(entry)
        for name, entry in entries.items()
        if entry is not None and not (testing and entry.get("by") in ("self-test", "watch"))
    }


def why(found: dict[str, object]) -> str:
    """What a GPU `is` that has this entry in a folder of cordons, such as `quarantined: Xid 79`.

    An entry with `by` is of someone's making; the others tell what the machine shows.
    """
    reason, by = text(found.get("reason")), text(found.get("by"))
    if not reason:
        return "out of use"
    kind = {"": "", "operator": "cordoned by the operator: "}.get(by, "quarantined: ")
    return kind + reason


def _entry(path: str) -> dict[str, object] | None:
    """What a file says; None if it is gone, since that GPU was brought back just now."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}  # whoever wrote it wanted the GPU out
