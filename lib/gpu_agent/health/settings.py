# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the charm tells the watch: a file that it writes and the watch reads. Pure, but for paths.

The watch must know nothing else of the charm, since the modules that could tell it cost memory.
"""

import dataclasses
import json
import pathlib
import typing

from gpu_agent.model.card import Card

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/health.json")
STATE: typing.Final = pathlib.Path("/var/lib/gpu-ci/health")
"""What it must remember, for root alone; a reboot keeps it."""
RUN: typing.Final = pathlib.Path("/run/gpu-ci/health")
"""What it has to say to the charm; gone at a reboot."""

VERSION: typing.Final = 1
ON: typing.Final = "on"
OBSERVE: typing.Final = "observe"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is watched, and how.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        dispatch: path of the charm's dispatch: where it is gone, nobody is left to watch for.
        mode: the option gpu-health: `on` or `observe`.
        vendor: the maker's name as in gpu_agent.model.inventory.Vendor.
        boot: what names the boot of the machine in which these cards were found.
        cards: the GPUs that are looked after.
        driver: the driver's version, such as `580.95.05`; or empty.
        cuda: the highest CUDA version of that driver, such as `13.0`; or empty.
        store: the folder of the leases.
        cordons: folders that say which GPUs are out of use, as the wrapper reads them.
        quarantine: that of them to which the watch writes.
        max_quarantined: of how many of the GPUs it may believe that they are broken, in percent.
        job_log: the option job-log.
        unused: the option gpu-unused.
        metrics_port: the option gpu-metrics-port; 0: none.
        recovery: the option gpu-recovery.
        poll_seconds: how often the GPUs are looked at.
    """

    unit: str
    dispatch: str
    mode: str = ON
    vendor: str = "nvidia"
    boot: str = ""
    cards: tuple[Card, ...] = ()
    driver: str = ""
    cuda: str = ""
    store: str = "/run/gpu-ci/leases"
    cordons: tuple[str, ...] = ()
    quarantine: str = "/var/lib/gpu-ci/quarantine"
    max_quarantined: int = 50
    job_log: str = "on"
    unused: str = "warn"
    metrics_port: int = 0
    recovery: str = "none"
    poll_seconds: float = 15.0


def as_text(settings: Settings) -> str:
    """Them as the file has them."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(settings)}, indent=1) + "\n"


def parse(text: str | bytes) -> Settings:
    """What `as_text` has written.

    Raises:
        ValueError: it is no settings, or those of another version of the charm.
    """
    try:
        found: dict[str, typing.Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise ValueError("they are of another version")
        found["cards"] = tuple(_card(one) for one in found["cards"])
        found["cordons"] = tuple(found["cordons"])
        settings = Settings(**found)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no settings of the watch: {error}") from error
    _check(settings)
    return settings


def _card(found: dict[str, typing.Any]) -> Card:
    found["devices"] = tuple(found["devices"])
    return Card(**found)


def _check(settings: Settings) -> None:
    """Refuse values of another kind than those that a Settings has.

    Raises:
        ValueError: it has such.
    """
    for field in dataclasses.fields(Settings):
        value: object = getattr(settings, field.name)
        meant: object = getattr(_EMPTY, field.name)
        if isinstance(value, bool) or not isinstance(value, _alike(meant)):
            raise ValueError(f"no settings of the watch: {field.name} is {value!r}")
    texts: list[object] = [*settings.cordons]
    for card in settings.cards:
        texts += [card.uuid, card.pci_address, card.model, *card.devices]
    indexes: list[object] = [card.index for card in settings.cards]
    if not all(isinstance(text, str) for text in texts) or {*map(type, indexes)} - {int}:
        raise ValueError(f"no settings of the watch: {settings.cards} or {settings.cordons}")
    if settings.mode not in (ON, OBSERVE):
        raise ValueError(f"no settings of the watch: mode is {settings.mode!r}")


def _alike(value: object) -> type | tuple[type, ...]:
    return (int, float) if isinstance(value, float) else type(value)


_EMPTY: typing.Final = Settings("", "")
