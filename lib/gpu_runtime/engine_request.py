# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a person asks of an engine for a container, and which devices that means.

What the person said to the engine counts first: `--gpus`, CDI names, `--device`, a mount of
/dev/null that names devices. Where nothing of that is there, it is GPU_COUNT, and then
NVIDIA_VISIBLE_DEVICES; neither from an image, which asks for nothing.
"""

from __future__ import annotations

from gpu_runtime import container_spec as spec
from gpu_runtime.device_nodes import Nodes, Numbers, numbers
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
# Docker's own names (29 daemon/devices_nvidia_linux.go, devices_amd_linux.go): who names a driver
# gets it whatever capabilities it asks for, else the capabilities choose one.
_DRIVERS = frozenset({"nvidia", "nvidia.cdi", "nvidia.runtime-hook", "amd"})
_CAPABILITIES = frozenset(
    {
        *("gpu", "nvidia", "amd"),
        *("compute", "compat32", "graphics", "utility", "video", "display"),
    }
)


class Wish:
    """What is asked for; false where that is nothing.

    Attributes:
        count: how many devices; None: all.
        names: indexes and ids of those that it is to be; empty: any.
        cards: numbers of the GPUs' nodes that it is to have.
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


def read(config: dict[str, object], facts: Facts, nodes: Nodes, *, privileged: bool) -> Wish:
    """What the container with this configuration is to have.

    Args:
        config: its config.json, as the engine wrote it.
        facts: what the engine notes of it.
        nodes: the machine's.
        privileged: whether it is given every device of the host anyway, so that none is a wish.

    Raises:
        Refused: that can't be followed, or nobody can tell who asks.
        OSError: a device node can't be looked at.
        ValueError: the configuration has no process.
    """
    wish = _requested(facts) or _mounted(config)
    if not wish and not privileged:
        wish = Wish(0, None, *_given(config, nodes))
    return wish or _told(variables(config.get("process"), facts), facts)


def variables(process: object, facts: Facts) -> Variables:
    """The variables of a container's process, each with its writer: the image or a person.

    Raises:
        ValueError: it is no process.
    """
    found = table(process)
    if not found:
        raise ValueError("it has no process")
    entries = [entry for entry in items(found.get("env")) if isinstance(entry, str)]
    return Variables.apart(entries, entries if facts.image is None else facts.image)


def devices(wish: Wish, policy: Policy, nodes: Nodes) -> tuple[int | None, list[str]]:
    """How many devices a wish means, None for all; and the ids of those that it names.

    Raises:
        Refused: it names one that is not handed out here.
        OSError: a device node can't be looked at.
    """
    if wish.cards:
        return _by_node(wish.cards, policy, nodes)
    if not wish.names:
        return wish.count, []
    found = {_by_name(name, policy).id: None for name in wish.names}
    return len(found), [*found]


def _requested(facts: Facts) -> Wish:
    """What Docker's `--gpus` and CDI names ask for."""
    wish = Wish()
    for request in facts.requests:
        names = [text(name) for name in items(request.get("DeviceIDs"))]
        if text(request.get("Driver")) == "cdi":
            names = [name for name in names if name.startswith(_CDI_KINDS)]
        elif not _is_for_gpus(request):
            continue
        names = [name.partition("=")[2] if "=" in name else name for name in names]
        count = request.get("Count")
        if ALL in names or (isinstance(count, int) and count < 0):
            return Wish(None)
        wish.names += names
        if wish.count is not None and isinstance(count, int) and not names:
            wish.count += count
    return wish


def _is_for_gpus(request: dict[str, object]) -> bool:
    if driver := text(request.get("Driver")):
        return driver in _DRIVERS
    wanted = {text(word) for words in items(request.get("Capabilities")) for word in items(words)}
    return not _CAPABILITIES.isdisjoint(wanted)


def _mounted(config: dict[str, object]) -> Wish:
    """What mounts of /dev/null ask for, as nvkind has them; an image can't make such."""
    names = [
        spec.destination(mount).rpartition("/")[2]
        for mount in items(config.get("mounts"))
        if spec.asks_for_device(mount) and table(mount).get("source") == "/dev/null"
    ]
    return Wish(None) if ALL in names else Wish(0, names)


def _given(config: dict[str, object], nodes: Nodes) -> list[Numbers]:
    """The GPUs' nodes that the engine is to put into the container, or to mount there."""
    linux = table(config.get("linux"))
    found = [node_numbers(table(node)) for node in items(linux.get("devices"))]
    for mount in map(table, items(config.get("mounts"))):
        source = text(mount.get("source"))
        found.append(numbers(source) if source.startswith("/dev/") else None)
    return [*dict.fromkeys(one for one in found if one in nodes.cards)]


def node_numbers(node: dict[str, object]) -> Numbers | None:
    """The numbers of a character device in a list of a configuration's; None: it is none."""
    major, minor = node.get("major"), node.get("minor")
    if node.get("type") in ("c", "u") and isinstance(major, int) and isinstance(minor, int):
        return major, minor
    return None


def _told(found: Variables, facts: Facts) -> Wish:
    """What a person's variables ask for."""
    asked = found.asked()
    if asked is None:
        if facts.image is None and any(name == COUNT for name, _, _ in found.entries):
            raise Refused(
                f"whether you or the image has set {COUNT} can't be told ({facts.fault}): ask by "
                "--gpus or by --device nvidia.com/gpu=0 instead"
            )
        return _named(found)
    if asked == ALL:
        return Wish(None)
    if not (asked.isdecimal() and asked.isascii() and len(asked) < 10):
        raise Refused(
            f"{COUNT} '{asked[:64]}' is no number of GPUs: set it to 0 for none, to how many the "
            "container needs, or to all"
        )
    return Wish(int(asked))


def _named(found: Variables) -> Wish:
    theirs = [
        entry.partition("=")[2] for name, entry, persons in found.entries if persons
        and name in _NAMING
    ]  # fmt: skip
    names = [name.strip() for name in (theirs[-1] if theirs else "").split(",")]
    if not _NONE.isdisjoint(names):
        return Wish()
    names = [name.partition("=")[2] if "=" in name else name for name in names]
    return Wish(None) if ALL in names else Wish(0, names)


def _by_node(cards: list[Numbers], policy: Policy, nodes: Nodes) -> tuple[int | None, list[str]]:
    found = {device.id: {*nodes.of(device)} for device in policy.devices}
    names = [name for name, own in found.items() if not own.isdisjoint(cards)]
    strange = [one for one in cards if not any(one in own for own in found.values())]
    # CDI's `all` names every GPU of the machine, and the operator hands out some.
    whole = nodes.gpus()
    if strange and len(whole) > 1 and whole.issubset(cards):
        return None, []
    # What comes with a GPU, such as its node below /dev/dri, is no wish beside it.
    strange = [one for one in strange if one in whole or not names]
    if strange:
        shown = ", ".join(nodes.cards[one] for one in strange)
        raise Refused(
            f"this container is to have {shown[:200]}, which is no whole GPU that this machine "
            f"hands out: {_shown(policy)}. Ask for one of these, or for any by {COUNT}=1"
        )
    return len(names), names


def _by_name(name: str, policy: Policy) -> Device:
    found = [device for device in policy.devices if device.id == name]
    if name.isdecimal() and name.isascii() and len(name) < 10:
        found = [device for device in policy.devices if device.index == int(name)]
    if len(found) != 1:
        why = "is divided, so one of its parts must be named" if found else "is not handed out"
        raise Refused(f"GPU {name[:64]} {why} on this machine, which has {_shown(policy)}")
    return found[0]


def _shown(policy: Policy) -> str:
    return ", ".join(f"GPU {device.index} ({device.id})" for device in policy.devices)
