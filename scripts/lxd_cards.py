# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Model GPUs, LXD's GPU devices and their assignment, for lxd-gpu and deploy-lxd.

Same input, same output: nothing here queries LXD or changes anything. Standard library only.
"""

import dataclasses
import re

from lxd_commands import Refused

# Devices of this command have names such as gpuci-0000-01-00.0.
PREFIX = "gpuci-"
KFD = f"{PREFIX}kfd"
# In the charm's order: vendor, PCI vendor id, drivers whose GPUs can be used.
MAKERS = {
    "nvidia": ("10de", ("nvidia",)),
    "amd": ("1002", ("amdgpu",)),
    "intel": ("8086", ("i915", "xe")),
}
# The graphics of every Intel processor, which the charm uses only if gpu-vendor says so.
INTEL_GRAPHICS = "0000:00:02.0"
ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU of this host, as LXD reports it."""

    address: str
    driver: str
    product: str
    vendor: str
    drm: str
    uuid: str
    name: str

    @classmethod
    def of(cls, told: dict) -> "Card":
        """Return the card in an entry of `gpu.cards` in /1.0/resources."""
        nvidia = told.get("nvidia") or {}
        names = nvidia.get("model"), told.get("product"), f"device {told.get('product_id')}"
        return cls(
            address=told.get("pci_address", ""),
            driver=told.get("driver", ""),
            product=told.get("product_id", ""),
            vendor=told.get("vendor_id", ""),
            drm=str((told.get("drm") or {}).get("id", "")),
            uuid=nvidia.get("uuid", ""),
            name=next(name for name in names if name),
        )

    def __str__(self) -> str:
        return f"{self.address}  {self.name}, driver {self.driver or 'none'}"


@dataclasses.dataclass(frozen=True)
class Owner:
    """An instance or a profile that gets devices; `devices` are its own ones."""

    kind: str  # config or profile: the lxc command for it
    name: str
    project: str
    devices: dict[str, dict[str, str]]

    @property
    def ours(self) -> dict[str, dict[str, str]]:
        """The devices that this command has added."""
        return {name: it for name, it in self.devices.items() if name.startswith(PREFIX)}

    def command(self, verb: str, device: str, *more: str) -> list[str]:
        """Return the command that adds a device to it, or removes one."""
        project = [] if self.project == "default" else ["--project", self.project]
        return ["lxc", self.kind, "device", verb, self.name, device, *more, *project]

    def removals(self, wanted: dict[str, dict[str, str]]) -> list[list[str]]:
        """Return commands that remove devices of ours that are not wanted, or differ."""
        return [
            self.command("remove", name)
            for name, device in self.ours.items()
            if device != wanted.get(name)
        ]

    def additions(self, wanted: dict[str, dict[str, str]]) -> list[list[str]]:
        """Return commands that then add the wanted devices."""
        commands: list[list[str]] = []
        for name, device in wanted.items():
            if self.devices.get(name) != device:
                values = (f"{key}={value}" for key, value in device.items() if key != "type")
                commands.append(self.command("add", name, device["type"], *values))
        return commands


def devices(cards: list[Card]) -> dict[str, dict[str, str]]:
    """Return the devices for these cards: LXD's properties of each, by name.

    LXD gives a node the host's mode, with which a container's other users can't open it.
    """
    wanted = {
        PREFIX + card.address.replace(":", "-"): {
            "type": "gpu",
            "gputype": "physical",
            "pci": card.address,
            "mode": "0666",
        }
        for card in cards
    }
    if any(card.driver == "amdgpu" for card in cards):
        wanted[KFD] = {
            "type": "unix-char",
            "source": "/dev/kfd",
            "mode": "0666",
            "required": "false",
        }
    return wanted


def usable(cards: list[Card], vendor: str) -> list[Card]:
    """Return the cards that the charm would use, sorted by address, as nvidia-smi counts.

    Raises:
        Refused: there is none.
    """
    for maker in MAKERS if vendor == "auto" else [vendor]:
        vendor_id, drivers = MAKERS[maker]
        found = [
            card
            for card in cards
            if card.vendor == vendor_id
            and card.driver in drivers
            and card.address
            # A processor's own graphics only if the operator asks for them.
            and (card.address != INTEL_GRAPHICS or vendor != "auto")
        ]
        if found:
            return sorted(found, key=lambda card: card.address)
    told = "".join(f"\n  {card}" for card in cards if card.address) or " none"
    raise Refused(
        "this host has no GPU with a driver that CI tasks could use"
        f"{'' if vendor == 'auto' else f' (gpu-vendor={vendor})'}; "
        f"the GPUs that LXD sees (lxc query /1.0/resources):{told}"
    )


def selected(cards: list[Card], text: str) -> list[Card]:
    """Return the cards that --gpus names by index or PCI address.

    Raises:
        Refused: a card does not exist, or is named twice.
    """
    chosen: list[Card] = []
    for word in text.lower().replace(" ", "").split(","):
        address = ADDRESS.fullmatch(word)
        if address:
            full = f"{address[1] or '0000'}:{address[2]}"
            found = [card for card in cards if card.address == full]
        else:
            found = cards[int(word) :][:1] if word.isdecimal() else []
        if not found:
            there = "".join(f"\n  {index}  {card}" for index, card in enumerate(cards))
            raise Refused(f"--gpus: there is no GPU {word!r}. Available:{there}")
        if found[0] in chosen:
            raise Refused(f"--gpus: GPU {found[0].address} is named twice")
        chosen += found
    return chosen


def covers(device: dict[str, str], card: Card) -> bool:
    """Return whether an LXD device of type gpu includes this card; True if unsure."""
    if device.get("type") != "gpu":
        return False
    if "pci" in device:
        address = ADDRESS.fullmatch(device["pci"].lower())
        return not address or f"{address[1] or '0000'}:{address[2]}" == card.address
    # By CDI, which counts in its own way: only a UUID is unambiguous.
    if "=" in device.get("id", ""):
        wanted = device["id"].partition("=")[2]
        return not (wanted.startswith("GPU-") and card.uuid and wanted != card.uuid)
    pairs = (("id", card.drm), ("vendorid", card.vendor), ("productid", card.product))
    return all(device.get(key, value) == value for key, value in pairs)


def holders(card: Card, instances: list[dict], spared: dict[str, dict[str, str]]) -> list[str]:
    """Return the instances that have a card, by a device that is not in `spared`."""
    return [
        instance["name"]
        for instance in instances
        if any(
            covers(device, card) and spared.get(name) != device
            for name, device in instance["expanded_devices"].items()
        )
    ]


def divide(cards: list[str], has: dict[str, list[str]]) -> dict[str, list[str]]:
    """Divide cards among units as evenly as possible; `has` is what each unit has already.

    Units that already have most get the remainder, so that a second call changes nothing.
    """
    least, more = divmod(len(cards), len(has))
    kept = {unit: [card for card in cards if card in mine] for unit, mine in has.items()}
    richest = sorted(kept, key=lambda unit: -len(kept[unit]))
    share = {unit: least + (place < more) for place, unit in enumerate(richest)}
    dealt: dict[str, list[str]] = {}
    for unit in richest:
        taken = {card for others in dealt.values() for card in others}
        dealt[unit] = [card for card in kept[unit] if card not in taken][: share[unit]]
    taken = {card for mine in dealt.values() for card in mine}
    free = [card for card in cards if card not in taken]
    for unit in has:
        lacks = share[unit] - len(dealt[unit])
        dealt[unit], free = sorted(dealt[unit] + free[:lacks]), free[lacks:]
    return {unit: dealt[unit] for unit in has}


def choose(
    cards: list[Card], named: list[Card], held: dict[str, list[str]], *, share: bool
) -> list[Card]:
    """Return the cards to give: the named ones, or else all that no other instance holds.

    Args:
        cards: all that can be used.
        named: the operator's choice; none: all.
        held: the other holders, by address.
        share: whether to give cards that others hold, too.

    Raises:
        Refused: a named card, or every card, has another holder.
    """
    wanted = named or cards
    taken = [card for card in wanted if held[card.address] and not share]
    if taken and (named or taken == wanted):
        raise Refused(
            "".join(
                f"GPU {one.address} is held by {', '.join(held[one.address])}; " for one in taken
            )
            + "remove it there, or let both use it with --share"
        )
    return [card for card in wanted if card not in taken]


def deal(cards: list[Card], owners: dict[str, Owner], *, share: bool) -> dict[str, list[Card]]:
    """Return which unit gets which of these cards; with `share` each gets all.

    Raises:
        Refused: without `share`, there are fewer cards than units.
    """
    if share:
        return dict.fromkeys(owners, cards)
    if len(cards) < len(owners):
        raise Refused(
            f"{len(owners)} units want a GPU and {len(cards)} can be given: remove units, free or "
            "name more cards, or let all units use the same with --share (a unit knows only its "
            "own tasks, so tasks of two units can get the same card)"
        )
    has = {
        unit: [device["pci"] for device in owner.ours.values() if "pci" in device]
        for unit, owner in owners.items()
    }
    dealt = divide([card.address for card in cards], has)
    return {unit: [card for card in cards if card.address in dealt[unit]] for unit in owners}
