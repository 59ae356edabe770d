# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs the health watch as the options say, and decides which GPUs it looks after."""

import pathlib
import typing

from gpu_agent import paths
from gpu_agent.health import service, settings
from gpu_agent.health.settings import Settings
from gpu_agent.model.card import Card
from gpu_agent.model.inventory import Gpu, State
from machine import files
from machine import tcp_connections as sockets
from options.part import Part
from plan.gpus import Choice
from plan.model import Plan
from plan.state import UnitState

_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[2] / "dispatch"


def cards(state: UnitState, choice: Choice, known: tuple[Card, ...] = ()) -> tuple[Card, ...]:
    """All GPUs that the unit's choice has: those in quarantine too, and those that are lost.

    Args:
        state: what was found.
        choice: the GPUs that gpu-device-ids allows here, by the indexes that people know.
        known: those that were looked after before in this boot of the machine. Of them those stay
            that are not here now, unless they are no longer chosen: somebody has to say that they
            are gone, and to see them come back.

    Returns:
        Them in the order of their indexes.
    """
    if state.inventory is None:
        return ()
    here = tuple(_card(index, gpu) for index, gpu in zip(choice.indexes, choice.gpus, strict=True))
    if state.inventory.state is State.READY:
        # A card of another choice is not ours, and in the place of one that is gone there may be
        # another card.
        others = {gpu.uuid for gpu in state.inventory.gpus}
        places = {gpu.pci_address for gpu in state.inventory.gpus}
    else:
        others, places = set[str](), set[str]()
    chosen = {uuid for _, uuid in choice.remember.uuids}
    lost = tuple(
        card
        for card in known
        if card.uuid not in others
        and card.pci_address not in places
        and (not state.options.gpu_device_ids or card.uuid in chosen)
    )
    return tuple(sorted((*here, *lost), key=lambda card: (card.index, card.uuid)))


def ensure(state: UnitState, wanted: Plan) -> bool:
    """Have the GPUs watched as the options say.

    It stays as it is where an option of it, or of which GPUs are meant, can't be used.

    Args:
        state: what this unit was decided on.
        wanted: what it is to be.

    Returns:
        Whether the watch was (re)started or taken away.

    Raises:
        WatchError: systemd can't start it.
    """
    if state.inventory is None or state.leaving:
        return service.remove()
    if {Part.WATCH, Part.GPU, Part.UNIT} & state.frozen:
        return False
    if state.options.gpu_health == "off":
        return service.stop()
    found = _settings(state, wanted)
    if found.cards or settings.PATH.exists():
        return service.install(found)
    return False


def port(state: UnitState) -> int | None:
    """Where the watch of such a unit serves metrics; None: nowhere."""
    options = state.options
    asked = state.inventory is not None and not state.leaving and options.gpu_health != "off"
    return options.gpu_metrics_port or None if asked else None


def taken_port() -> int:
    """Return the port of the metrics if another program has it; else 0.

    Raises:
        OSError: that can't be looked at.
    """
    found = _earlier()
    asked = found.metrics_port if found else 0
    return asked if asked and sockets.is_taken(asked, service.SERVICE) else 0


def _card(index: int, gpu: Gpu) -> Card:
    model = gpu.model.removeprefix(f"{gpu.vendor.display} ")
    return Card(gpu.uuid, index, gpu.pci_address, model, gpu.devices)


def _settings(state: UnitState, wanted: Plan) -> Settings:
    options, inventory, earlier = state.options, state.inventory, _earlier() or Settings("", "")
    is_told = inventory is not None and inventory.state is State.READY
    # What a boot has not brought back is gone for good; nothing is while the driver tells nothing.
    boot = state.machine.boot if is_told else earlier.boot
    known = earlier.cards if earlier.boot in ("", boot) else ()
    driver = (inventory.driver, inventory.cuda) if inventory and is_told else None
    return Settings(
        unit=state.unit,
        dispatch=str(_DISPATCH),
        mode=options.gpu_health,
        vendor=inventory.vendor.value if inventory else "",
        boot=boot,
        cards=cards(state, wanted.choice, known),
        driver=driver[0] if driver else earlier.driver,
        cuda=driver[1] if driver else earlier.cuda,
        store=str(paths.STORE),
        cordons=(str(paths.CORDONS), str(paths.QUARANTINE)),
        quarantine=str(paths.QUARANTINE),
        max_quarantined=options.max_quarantined,
        job_log=options.job_log,
        unused=options.gpu_unused,
        metrics_port=options.gpu_metrics_port,
        recovery=options.gpu_recovery,
    )


def _earlier() -> Settings | None:
    text = files.read_text(settings.PATH)
    try:
        return settings.parse(text) if text else None
    except ValueError:
        return None
