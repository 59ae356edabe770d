# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""policy.json: the GPUs that the charm offers on this worker. The charm writes it."""

from __future__ import annotations

from gpu_runtime import device_vendors
from gpu_runtime.device_vendors import Vendor
from gpu_runtime.json_files import read_object
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused, again
from gpu_runtime.unavailable import Unavailable, read_folder

VERSION = 3
# The prefix of the ids of the self-test's containers. The ids of a CI system's are UUIDs.
SELF_TEST_CONTAINER = "gpu-selftest-"

_HEX = frozenset("0123456789abcdef")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
# A policy of the revision before does not say how tasks are known. Its tasks are Concourse's,
# whose folders these are (8.2.5 atc/engine/step_factory.go:80-184).
_TASKS_BEFORE = {"parent": "/tmp/build/", "others": ["get", "put", "run"]}  # noqa: S108


class TaskFolders:
    """How the container of a task is known: by the folder that it works in.

    Attributes:
        parent: the folder in the container that has the task's own, which is named by eight hex
            digits; with a slash at its end. Empty: not known, so that it may be any.
        others: other folders in there, whose containers are no tasks; as `parent` is written.
    """

    __slots__ = ("others", "parent")

    def __init__(self, parent: str, others: tuple[str, ...]) -> None:
        self.parent = parent
        self.others = others


def task_folders(found: dict[str, object]) -> TaskFolders:
    """Return how tasks are known.

    The front searches config.json for the names in `parent`, by an expression within quotes of the
    shell. So a name has no character that means more than itself there or in JSON.

    Args:
        found: `parent` as in TaskFolders, and the names of `others`.

    Raises:
        ValueError: `found` has no such folders.
    """
    parent, others = text(found.get("parent")), found.get("others")
    names = parent[1:-1].split("/")
    if parent != f"/{'/'.join(names)}/" or not all(map(_is_plain, names)):
        raise ValueError(f"the folder of tasks is {parent!r}")
    if items(others) is not others:
        raise ValueError(f"the other folders of tasks are {others!r}")
    for name in map(text, items(others)):
        if not _is_plain(name) or is_task_name(name):
            raise ValueError(f"another folder of tasks is {name!r}")
    return TaskFolders(parent, tuple(f"{parent}{text(name)}/" for name in items(others)))


def is_task_name(name: str) -> bool:
    """Whether a folder of this name is a task's, if it lies in the folder for those."""
    return len(name) == 8 and _HEX.issuperset(name)


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
        self.vendor = vendor = device_vendors.read(found)
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


class File:
    """policy.json, read once for both: how tasks are known, and what they may have.

    Attributes:
        tasks: how the container of a task is known.
    """

    __slots__ = ("_fault", "_found", "_noun", "_path", "tasks")

    def __init__(self, path: str, noun: str = "task") -> None:
        """Read the file.

        If it is unreadable, what may be a task counts as one, and then meets the error.

        Args:
            path: the file.
            noun: the kind of the request, for the message if the file is unreadable.
        """
        self._path, self._noun = path, noun
        self._fault: OSError | ValueError | None = None
        self._found: dict[str, object] = {}
        self.tasks = TaskFolders("", ())
        try:
            self._found = read_object(path)
            self.tasks = task_folders(table(self._found.get("tasks", _TASKS_BEFORE)))
        except (OSError, ValueError) as error:
            self._fault = error

    def policy(self) -> Policy | None:
        """Return the policy; None if it names no GPU.

        Raises:
            Refused: the file is unreadable or invalid. A missing file is damage too: it is
                installed together with the GPU runtime.
        """
        try:
            if self._fault:
                raise self._fault
            return Policy(self._found) if self._found.get("gpus") != [] else None
        except (OSError, ValueError) as error:
            raise Refused(
                "policy-unreadable",
                f"GPU policy file {self._path} is unreadable ({error}). The worker rewrites "
                f"it within 5 minutes; {again(self._noun)} then",
            ) from error


def read(path: str, noun: str = "task") -> Policy | None:
    """Return the policy in the file at `path`; None if it names no GPU.

    Args:
        path: the file.
        noun: the kind of the request, for the message if the file is unreadable.

    Raises:
        Refused: it is unreadable or invalid.
    """
    return File(path, noun).policy()


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


def _is_plain(name: str) -> bool:
    """Whether `name` is that of a folder, without a character of another meaning elsewhere."""
    return bool(name.strip(".")) and _PLAIN.issuperset(name)


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path")
