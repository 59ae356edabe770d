# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""policy.json: the GPUs that the charm offers on this worker. The charm writes it."""

from __future__ import annotations

from gpu_runtime.device_vendors import VENDORS, Vendor
from gpu_runtime.json_files import read_object
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused, again
from gpu_runtime.unavailable import Unavailable, read_folder

VERSION = 3
# The prefix of the ids of the self-test's containers. Concourse's ids are UUIDs.
SELF_TEST_CONTAINER = "gpu-selftest-"


class Device:
    """A device that can be handed out: a GPU, or a MIG device of one.

    Attributes:
        index: the driver's index of the GPU when the policy was written.
        id: its UUID (`GPU-...`, `MIG-...`), or `PCI-<address>` if it has none.
        gpu: the id of the whole GPU.
        model: the GPU's product name.
        arch: its compute capability, such as `8.0`, and
        brand: its brand as in NVIDIA_REQUIRE_*, such as `tesla`; empty: not known.
        nodes: the paths of the device nodes that a container needs; empty if NVIDIA's runtime adds
            them.
        watched: the paths of the device nodes that belong to this device only. A process that has
            one open uses this device. Empty if there is none, as with a MIG device.
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
    """The charm's policy.

    Attributes:
        exclusive: whether a GPU has one holder at a time; if not, tasks share all GPUs.
        gpus_per_task: the number of GPUs of a task without GPU_COUNT.
        wait_timeout: how long a task may wait for its GPUs, in seconds.
        hijack_limit: how long a session in a container may keep its GPUs after the step, in
            seconds; 0: as long as it runs.
        privileged: whether privileged tasks may have GPUs.
        vendor: the vendor of the GPUs, which decides how they are handed out.
        nvidia_runtime: the absolute path of nvidia-container-runtime; empty for other vendors.
        config_home: the folder that holds its private `nvidia-container-runtime/config.toml`.
        driver: version of NVIDIA's driver when the policy was written, and
        cuda: the highest CUDA version of that driver; empty: not known.
        devices: the devices that tasks may have, each id once.
        unavailable_folders: folders with a record for each unavailable GPU; if a GPU has several
            records, that of the last folder counts.
    """

    __slots__ = (
        "config_home", "cuda", "devices", "driver", "exclusive", "gpus_per_task", "hijack_limit",
        "nvidia_runtime", "privileged", "unavailable_folders", "vendor", "wait_timeout",
    )  # fmt: skip

    def __init__(self, found: dict[str, object]) -> None:
        """Read a policy.

        Raises:
            ValueError: `found` is not a valid policy.
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
        # Runtimes of two revisions read this key while a unit is refreshed, so it keeps its name.
        self.unavailable_folders = [text(folder) for folder in items(found.get("cordons"))]
        self.devices = _devices(items(found.get("gpus")), vendor)

    def unavailable(self, container: str = "") -> dict[str, Unavailable]:
        """The ids of the devices that `container` cannot get now, each with the cause.

        Raises:
            OSError: a folder of records can't be read.
        """
        testing = container.startswith(SELF_TEST_CONTAINER)
        found: dict[str, Unavailable] = {}
        for folder in self.unavailable_folders:
            found |= read_folder(folder, testing=testing)
        return {
            device.id: found.get(device.gpu) or found[device.id]
            for device in self.devices
            if device.gpu in found or device.id in found
        }


def read(path: str, noun: str = "task") -> Policy | None:
    """Return the policy in the file at `path`; None if it names no GPU.

    Args:
        path: the file.
        noun: the kind of the request, for the message if the file is unreadable.

    Raises:
        Refused: it is unreadable or invalid. A missing file is damage too: it is installed
            together with the GPU runtime.
    """
    try:
        found = read_object(path)
        return Policy(found) if found.get("gpus") != [] else None
    except (OSError, ValueError) as error:
        raise Refused(
            "policy-unreadable",
            f"GPU policy file {path} is unreadable ({error}). The charm rewrites it within 5 "
            f"minutes; {again(noun)} then",
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
            raise ValueError(f"{entry!r} is not a GPU that can be handed out")
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
            watched = own if name == whole else []  # parts share them
            device = Device(index, _checked_id(name, vendor), whole, model, nodes, watched)
            device.arch, device.brand = text(gpu.get("arch")), text(gpu.get("brand"))
            devices.setdefault(name, device)
    if not devices:
        raise ValueError("its GPUs have no device to hand out; if MIG is on, create MIG devices")
    return list(devices.values())


def _minor(gpu: dict[str, object]) -> int | None:
    """The N of a GPU's /dev/nvidiaN; None where it is not known."""
    return None if gpu.get("minor") is None else _number(gpu, "minor")


def _checked_id(name: str, vendor: Vendor) -> str:
    """Return `name` if it can mean only one device: not a list, `all`, an index or a path."""
    for prefix in vendor.ids:
        rest = name[len(prefix) :]
        for mark in ":." if prefix == "PCI-" else "-/":
            rest = rest.replace(mark, "")
        if name.startswith(prefix) and rest.isalnum():
            return name
    raise ValueError(f"{name!r} is not an id of a GPU or MIG device")


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
