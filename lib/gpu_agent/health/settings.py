# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The settings of the GPU health service: a file that the charm writes. Pure, except for paths.

The service gets everything about the charm from this file, since the charm's modules cost memory.
"""

import dataclasses
import json
import pathlib
import typing

from gpu_agent.model.card import Card

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/health.json")
STATE: typing.Final = pathlib.Path("/var/lib/gpu-ci/health")
"""The service's memory, for root only; it outlasts a reboot."""
RUN: typing.Final = pathlib.Path("/run/gpu-ci/health")
"""The service's messages to the charm; a reboot removes them."""

VERSION: typing.Final = 1
ENABLED: typing.Final = "enabled"
OBSERVE: typing.Final = "observe"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the service watches, and how.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`; empty: no charm is woken.
        dispatch: path of the charm's dispatch, or of the command that the agent has without Juju;
            the service ends if it is gone.
        mode: the option gpu-health: `enabled` or `observe`.
        vendor: the name of the GPUs' vendor.
        boot: id of the boot in which these cards were found.
        cards: the watched GPUs.
        driver: the driver's version, such as `580.95.05`; or empty.
        cuda: the highest CUDA version of that driver, such as `13.0`; or empty.
        store: the folder of the leases.
        unavailable_folders: the folders with records of unavailable GPUs.
        max_quarantined: limit of the circuit breaker: the share of the GPUs in percent.
        job_log: the option job-log.
        unused: the option idle-gpu-action.
        metrics_port: the option gpu-metrics-port; 0: none.
        recovery: what the charm may do for a GPU: `none`, `reset` (and a reboot after it, if
            that is allowed) or only `reboot`.
        poll_seconds: seconds between two polls of the GPUs.
        job_names: the CI system's program that tells which jobs containers belong to: arguments
            of Python; empty: jobs have no names.
        log_reader: the program of the CI system's runners that reads what their jobs write; empty:
            it is the main process of a runner's unit.
        ci_figures: path of the CI system's figures for metrics; empty: it has none.
    """

    unit: str
    dispatch: str
    mode: str = ENABLED
    vendor: str = ""
    boot: str = ""
    cards: tuple[Card, ...] = ()
    driver: str = ""
    cuda: str = ""
    store: str = "/run/gpu-ci/leases"
    unavailable_folders: tuple[str, ...] = ()
    max_quarantined: int = 50
    job_log: str = "enabled"
    unused: str = "warn"
    metrics_port: int = 0
    recovery: str = "none"
    poll_seconds: float = 15.0
    job_names: tuple[str, ...] = ()
    log_reader: str = ""
    ci_figures: str = ""


def as_text(settings: Settings) -> str:
    """The content of the file."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(settings)}, indent=1) + "\n"


def parse(text: str | bytes) -> Settings:
    """Read the text of `as_text`.

    Raises:
        ValueError: the text has no settings, or those of another version of the charm.
    """
    try:
        found: dict[str, typing.Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise ValueError("they are of another version")
        found["cards"] = tuple(_card(one) for one in found["cards"])
        # The revision before had other names, and a refresh reads its file for the cards.
        found.pop("quarantine", None)
        folders = found.pop("cordons", None) or found["unavailable_folders"]
        found["unavailable_folders"] = tuple(folders)
        # A revision before knew the only program by itself.
        found["job_names"] = tuple(found.get("job_names", ()))
        found["mode"] = ENABLED if found["mode"] == "on" else found["mode"]
        settings = Settings(**found)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not settings of the GPU health service: {error}") from error
    _check(settings)
    return settings


def _card(found: dict[str, typing.Any]) -> Card:
    found["devices"] = tuple(found["devices"])
    return Card(**found)


def _check(settings: Settings) -> None:
    """Check the types of all values.

    Raises:
        ValueError: a value has another type.
    """
    for field in dataclasses.fields(Settings):
        value: object = getattr(settings, field.name)
        meant: object = getattr(_EMPTY, field.name)
        if isinstance(value, bool) or not isinstance(value, _alike(meant)):
            raise ValueError(f"not settings of the GPU health service: {field.name} is {value!r}")
    texts: list[object] = [*settings.unavailable_folders, *settings.job_names]
    for card in settings.cards:
        texts += [card.uuid, card.pci_address, card.model, *card.devices]
    indexes: list[object] = [card.index for card in settings.cards]
    if not all(isinstance(text, str) for text in texts) or {*map(type, indexes)} - {int}:
        wrong = f"{settings.cards} or {settings.unavailable_folders}"
        raise ValueError(f"not settings of the GPU health service: {wrong}")
    if settings.mode not in (ENABLED, OBSERVE):
        raise ValueError(f"not settings of the GPU health service: mode is {settings.mode!r}")


def _alike(value: object) -> type | tuple[type, ...]:
    return (int, float) if isinstance(value, float) else type(value)


_EMPTY: typing.Final = Settings("", "")
