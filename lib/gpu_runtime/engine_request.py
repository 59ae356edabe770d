# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read a person's request for GPUs for a container of an engine, and find the devices.

Options of the engine count first: `--gpus`, CDI names, `--device`, a mount of /dev/null that names
devices. Without any, GPU_COUNT counts, and then NVIDIA_VISIBLE_DEVICES. Variables of the image
request nothing.
"""

from __future__ import annotations

from gpu_runtime import container_spec as spec
from gpu_runtime.device_nodes import Nodes, Numbers
from gpu_runtime.environment import COUNT, Variables
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpu_runtime.engine_metadata import Facts
    from gpu_runtime.policy import Device, Policy

ALL = "all"
_NAMING = ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES")
_NONE = frozenset({"", "void", "none"})
_CDI_KINDS = ("nvidia.com/", "amd.com/", "intel.com/", "runtime.nvidia.com/")
# Docker's own names (29 daemon/devices_nvidia_linux.go, devices_amd_linux.go): a request that
# names a driver gets it, whatever its capabilities. Otherwise the capabilities choose the driver.
_DRIVERS = frozenset({"nvidia", "nvidia.cdi", "nvidia.runtime-hook", "amd"})
_CAPABILITIES = frozenset(
    {
        *("gpu", "nvidia", "amd"),
        *("compute", "compat32", "graphics", "utility", "video", "display"),
    }
)


class GpuRequest:
    """A request for devices; false if it requests none.

    Attributes:
        count: the number of devices; None: all.
        names: the indexes and ids of particular devices; empty: any.
        cards: the numbers of the GPU nodes that are requested.
    """

    __slots__ = ("cards", "count", "names")

    def __init__(
        self, count: int | None = 0, names: list[str] | None = None, *cards: Numbers
    ) -> None:
        self.count = count
        self.names = names or []
        self.cards = [*cards]

    def __bool__(self) -> bool:
        return self.count != 0 or bool(self.names) or bool(self.cards)


def read(config: dict[str, object], facts: Facts, nodes: Nodes, *, privileged: bool) -> GpuRequest:
    """Return the request of the container with this configuration.

    Args:
        config: its config.json, as the engine wrote it.
        facts: the engine's record of it.
        nodes: the machine's.
        privileged: whether the engine gives it every device of the host, so that a node in its
            configuration is not a request.

    Raises:
        Refused: the request is invalid, or it may come from the image.
        OSError: a device node cannot be read.
        ValueError: the configuration has no process.
    """
    wanted = _requested(facts) or _mounted(config)
    if not wanted and not privileged:
        wanted = GpuRequest(0, None, *_given(config, nodes))
    return wanted or _from_variables(variables(config.get("process"), facts), facts)


def variables(process: object, facts: Facts) -> Variables:
    """Return the variables of a container's process, each with its writer: image or person.

    Raises:
        ValueError: `process` is not a process.
    """
    found = table(process)
    if not found:
        raise ValueError("it has no process")
    entries = [entry for entry in items(found.get("env")) if isinstance(entry, str)]
    return Variables.apart(entries, entries if facts.image is None else facts.image)


def devices(wanted: GpuRequest, policy: Policy, nodes: Nodes) -> tuple[int | None, list[str]]:
    """Return the number of devices of a request, None for all, and the ids that it names.

    Raises:
        Refused: it names a device that this machine does not offer.
        OSError: a device node cannot be read.
    """
    if wanted.cards:
        return _by_node(wanted.cards, policy, nodes)
    if not wanted.names:
        return wanted.count, []
    found = {_by_name(name, policy).id: None for name in wanted.names}
    return len(found), [*found]


def _requested(facts: Facts) -> GpuRequest:
    """Return the request of Docker's `--gpus` and CDI names."""
    wanted = GpuRequest()
    for request in facts.requests:
        names = [text(name) for name in items(request.get("DeviceIDs"))]
        if text(request.get("Driver")) == "cdi":
            names = [name for name in names if name.startswith(_CDI_KINDS)]
        elif not _is_for_gpus(request):
            continue
        names = [name.partition("=")[2] if "=" in name else name for name in names]
        count = request.get("Count")
        if ALL in names or (isinstance(count, int) and count < 0):
            return GpuRequest(None)
        wanted.names += names
        if wanted.count is not None and isinstance(count, int) and not names:
            wanted.count += count
    return wanted


def _is_for_gpus(request: dict[str, object]) -> bool:
    if driver := text(request.get("Driver")):
        return driver in _DRIVERS
    wanted = {text(word) for words in items(request.get("Capabilities")) for word in items(words)}
    return not _CAPABILITIES.isdisjoint(wanted)


def _mounted(config: dict[str, object]) -> GpuRequest:
    """Return the request of mounts of /dev/null, as nvkind uses them. An image cannot mount."""
    names = [
        spec.destination(mount).rpartition("/")[2]
        for mount in items(config.get("mounts"))
        if spec.asks_for_device(mount) and table(mount).get("source") == "/dev/null"
    ]
    return GpuRequest(None) if ALL in names else GpuRequest(0, names)


def _given(config: dict[str, object], nodes: Nodes) -> list[Numbers]:
    """Return the GPU nodes that the engine adds to the container or mounts there."""
    linux = table(config.get("linux"))
    found = [node_numbers(table(node)) for node in items(linux.get("devices"))]
    for mount in map(table, items(config.get("mounts"))):
        source = text(mount.get("source"))
        found.append(nodes.numbers(source) if source.startswith("/dev/") else None)
    return [*dict.fromkeys(one for one in found if one in nodes.cards)]


def node_numbers(node: dict[str, object]) -> Numbers | None:
    """Return the numbers of a character device in a configuration; None for other entries."""
    major, minor = node.get("major"), node.get("minor")
    if node.get("type") in ("c", "u") and isinstance(major, int) and isinstance(minor, int):
        return major, minor
    return None


def _from_variables(found: Variables, facts: Facts) -> GpuRequest:
    """Return the request of a person's variables."""
    asked = found.asked()
    if asked is None:
        if facts.image is None and any(name == COUNT for name, _, _ in found.entries):
            raise Refused(
                "gpu-count-ambiguous",
                f"cannot tell whether {COUNT} comes from you or from the image ({facts.fault}). "
                "Use --gpus or --device nvidia.com/gpu=0",
            )
        return _named(found)
    if asked == ALL:
        return GpuRequest(None)
    if not (asked.isdecimal() and asked.isascii() and len(asked) < 10):
        raise Refused(
            "gpu-count-invalid",
            f"{COUNT}='{asked[:64]}' is not a number of GPUs. Set it to 0 for none, to the number "
            "that the container needs, or to all",
        )
    return GpuRequest(int(asked))


def _named(found: Variables) -> GpuRequest:
    theirs = [
        entry.partition("=")[2] for name, entry, persons in found.entries if persons
        and name in _NAMING
    ]  # fmt: skip
    names = [name.strip() for name in (theirs[-1] if theirs else "").split(",")]
    if not _NONE.isdisjoint(names):
        return GpuRequest()
    names = [name.partition("=")[2] if "=" in name else name for name in names]
    return GpuRequest(None) if ALL in names else GpuRequest(0, names)


def _by_node(cards: list[Numbers], policy: Policy, nodes: Nodes) -> tuple[int | None, list[str]]:
    found = {device.id: {*nodes.of(device)} for device in policy.devices}
    names = [name for name, own in found.items() if not own.isdisjoint(cards)]
    strange = [one for one in cards if not any(one in own for own in found.values())]
    # CDI's `all` names every GPU of the machine; the operator may offer only some of them.
    whole = nodes.gpus()
    if strange and len(whole) > 1 and whole.issubset(cards):
        return None, []
    # A node that belongs to a requested GPU, such as the one below /dev/dri, adds nothing.
    strange = [one for one in strange if one in whole or not names]
    if strange:
        shown = ", ".join(nodes.cards[one] for one in strange)
        raise Refused(
            "gpu-not-offered",
            f"{shown[:200]} is not a GPU that this machine offers. Offered: {_shown(policy)}. "
            f"Request one of these, or any with {COUNT}=1",
        )
    return len(names), names


def _by_name(name: str, policy: Policy) -> Device:
    found = [device for device in policy.devices if device.id == name]
    if name.isdecimal() and name.isascii() and len(name) < 10:
        found = [device for device in policy.devices if device.index == int(name)]
    if len(found) != 1:
        why = "is divided into MIG devices" if found else "is not offered by this machine"
        raise Refused(
            "gpu-divided" if found else "gpu-not-offered",
            f"GPU {name[:64]} {why}. Offered: {_shown(policy)}. Request one of these, or any with "
            f"{COUNT}=1",
        )
    return found[0]


def _shown(policy: Policy) -> str:
    return ", ".join(f"GPU {device.index} ({device.id})" for device in policy.devices)
