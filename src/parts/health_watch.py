# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs the GPU health service as the options say, and chooses its GPUs."""

import pathlib
import typing

from gpu_agent import paths
from gpu_agent.gpu.vendors import registry
from gpu_agent.health import service, settings
from gpu_agent.health.settings import Settings
from gpu_agent.model.card import Card
from gpu_agent.model.inventory import Gpu, State
from machine import files
from machine import tcp_connections as sockets
from options.part import Part
from options.table import Options
from plan.gpus import Choice
from plan.model import Plan
from plan.state import UnitState

_DISPATCH: typing.Final = pathlib.Path(__file__).resolve().parents[2] / "dispatch"


def cards(state: UnitState, choice: Choice, known: tuple[Card, ...] = ()) -> tuple[Card, ...]:
    """Return all chosen GPUs of the unit, quarantined and lost ones included.

    Args:
        state: what was found.
        choice: the GPUs that gpu-device-ids allows here, by the indexes that people know.
        known: the service's GPUs since the boot. A missing one stays in the list while it is
            chosen, so that the service reports its loss and its return.

    Returns:
        The GPUs in the order of their indexes.
    """
    if state.inventory is None:
        return ()
    here = tuple(_card(index, gpu) for index, gpu in zip(choice.indexes, choice.gpus, strict=True))
    if state.inventory.state is State.READY:
        # A card that is not chosen does not count, and another card may be in the slot of a lost
        # one.
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
    """Run the GPU health service as the options say.

    If one of its options, or gpu-device-ids, cannot be used, nothing is changed.

    Args:
        state: the state of this unit.
        wanted: the plan for it.

    Returns:
        Whether the service was started, restarted or removed.

    Raises:
        WatchError: systemd cannot start it.
    """
    if state.inventory is None or state.leaving:
        return service.remove()
    if {Part.WATCH, Part.GPU, Part.UNIT} & state.frozen:
        return False
    if state.options.gpu_health == "disabled":
        return service.stop()
    found = _settings(state, wanted)
    if found.cards or settings.PATH.exists():
        return service.install(found)
    return False


def port(state: UnitState) -> int | None:
    """Return the port of the GPU metrics; None: no metrics."""
    options = state.options
    asked = state.inventory is not None and not state.leaving and options.gpu_health != "disabled"
    return options.gpu_metrics_port or None if asked else None


def taken_port() -> int:
    """Return the port of the metrics if another program has it; else 0.

    Raises:
        OSError: the connections cannot be read.
    """
    found = _earlier()
    asked = found.metrics_port if found else 0
    return asked if asked and sockets.is_taken(asked, service.SERVICE) else 0


def names_jobs() -> bool:
    """Whether the GPU health service asks the CI system for the names of jobs."""
    found = _earlier()
    return bool(found and found.job_names)


def _card(index: int, gpu: Gpu) -> Card:
    model = registry.without_maker(gpu.model)
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
        vendor=inventory.vendor if inventory else "",
        boot=boot,
        cards=cards(state, wanted.choice, known),
        driver=driver[0] if driver else earlier.driver,
        cuda=driver[1] if driver else earlier.cuda,
        store=str(paths.STORE),
        unavailable_folders=(str(paths.EXTERNAL), str(paths.QUARANTINE), str(paths.CLOSED)),
        max_quarantined=options.quarantine_limit_percent,
        job_log=options.job_log,
        unused=options.idle_gpu_action,
        metrics_port=options.gpu_metrics_port,
        recovery=_recovery(options),
        job_names=state.agent.job_names,
        log_reader=state.agent.log_reader,
        ci_figures=state.agent.figures,
    )


def _recovery(options: Options) -> str:
    if options.gpu_recovery == "none" and options.may_reboot_for_gpu:
        return "reboot"
    return options.gpu_recovery


def _earlier() -> Settings | None:
    text = files.read_text(settings.PATH)
    try:
        return settings.parse(text) if text else None
    except ValueError:
        return None
