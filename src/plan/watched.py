# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs the health watch looks after. Pure."""

from gpu.inventory import Gpu, State
from health.seen import Card
from plan.gpus import Choice
from plan.state import UnitState


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


def _card(index: int, gpu: Gpu) -> Card:
    model = gpu.model.removeprefix(f"{gpu.vendor.display} ")
    return Card(gpu.uuid, index, gpu.pci_address, model, gpu.devices)
