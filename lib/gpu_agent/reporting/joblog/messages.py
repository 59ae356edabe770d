# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a job's log is told of its GPUs: sentences for the job's author. Pure.

Each is one line of printable ASCII, short enough to be written in one piece.
"""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.card import Card
from gpu_agent.model.decisions import Tell

MARK: typing.Final = "[gpu-ci] "
_MOST: typing.Final = (
    400  # letters of a line; one page of memory is what a pipe takes in one piece
)
_NAMED: typing.Final = 4  # of so many GPUs each is named, of more their number

# The author's words for what NVIDIA calls the application's fault
# (gpu_agent.fault_policy.fault_table.JOB_XIDS).
_MEANT: typing.Final = {
    13: "a kernel of this job used an illegal address or instruction. Most often the program is "
    "wrong, not the GPU: compute-sanitizer names the line, CUDA_LAUNCH_BLOCKING=1 the call",
    31: "this job used GPU memory that it does not have, as a segmentation fault does. Most often "
    "the program is wrong, not the GPU: compute-sanitizer names the line",
    43: "after an error of the program the driver has ended what it ran on the GPU. The GPU is "
    "well; look for the first error above",
    45: "what the program ran on the GPU was ended, as after an error, an abort or a kill. The "
    "GPU is well; look for the first error above",
}


@dataclasses.dataclass(frozen=True)
class Used:
    """What one GPU has done for a job so far. None stands for what is not known.

    Attributes:
        card: the GPU.
        busy: how much of the time a kernel ran, in %.
        peak_mib: the most memory that was taken at a look.
        total_mib: all of its memory.
    """

    card: Card
    busy: float | None = None
    peak_mib: int | None = None
    total_mib: int | None = None


def start(
    cards: collections.abc.Sequence[Card],
    devices: collections.abc.Collection[str],
    waited: float | None,
    driver: str = "",
    cuda: str = "",
) -> str:
    """What a job has got.

    Args:
        cards: its GPUs, in whole or in part; at least one.
        devices: ids of what it has of them.
        waited: for how long it had to wait, in seconds; None: that is not known.
        driver: the driver's version; empty: it has none of its own.
        cuda: the highest CUDA version of that driver.
    """
    models = list(dict.fromkeys(card.model for card in cards))
    if len(cards) <= _NAMED and len(models) == 1:
        having = f"{_what(cards, devices)}: {models[0]}"
    elif len(cards) <= _NAMED:
        having = ", ".join(f"{_what([card], devices)}: {card.model}" for card in cards)
    else:
        having = f"{len(cards)} GPUs: {', '.join(models)}"
    words = [having, f"driver {driver}" if driver else "", f"CUDA {cuda}" if cuda else ""]
    line = ", ".join(filter(None, words))
    return _line(line + ("" if waited is None else f"; waited {_seconds(waited)}"))


def fault(card: Card, tell: Tell, *, out: bool) -> str:
    """What happened to a GPU of a job.

    Args:
        card: the GPU.
        tell: what the job is to be told.
        out: no further job gets that GPU now.
    """
    gpu = f"GPU {card.index}"
    if tell.hardware:
        now = "It is out of use now; run the build again" if out else "Run the build again"
        return _line(f"{gpu} failed ({tell.text}): hardware, not your change. {now}")
    if tell.xid in _MEANT:
        return _line(f"{gpu}: Xid {tell.xid}: {_MEANT[tell.xid]}")
    return _line(
        f"{gpu}: {tell.text}. What ran on it is lost; a kernel that hangs can bring it on"
    )


def used(seconds: float, gpus: collections.abc.Sequence[Used], energy_j: float | None) -> str:
    """What a job has used so far, such as `14 min: GPU 71 % busy, memory peak 61 of 80 GiB`.

    Args:
        seconds: since it got its GPUs.
        gpus: each GPU; at least one.
        energy_j: what all of them have drawn for it; None: that is not known.
    """
    if len(gpus) == 1:
        told = [f"GPU {words}" for words in [_figures(gpus[0])] if words]
    elif len(gpus) <= _NAMED:
        each = [(one.card.index, _figures(one)) for one in gpus]
        told = [f"GPU {index} {words}" for index, words in each if words]
    else:
        known = [one.busy for one in gpus if one.busy is not None]
        mean = sum(known) / len(known) if known else 0
        told = [f"{len(gpus)} GPUs {mean:.0f} % busy"] if known else []
    if energy_j is not None and energy_j >= 0:
        told.append(_energy(energy_j))
    return _line(f"{_long(seconds)}: {', '.join(told)}") if told else ""


def unused(cards: collections.abc.Sequence[Card], seconds: float, *, ends: bool) -> str:
    """That a job has GPUs and does not use them.

    Args:
        cards: those GPUs; at least one.
        seconds: for how long it has had them.
        ends: the job is ended for it.
    """
    gpus = f"GPU {_listed(card.index for card in cards)}"
    what = f"no process has used {gpus} in {_long(seconds)}: is this a CPU-only build of the "
    what += "framework? "
    advice = "Set the param GPU_COUNT to 0 if this step needs no GPU"
    if ends:
        return _line(f"{what}This step is ended for that (gpu-unused=fail). {advice}")
    return _line(what + advice)


def _what(cards: collections.abc.Sequence[Card], devices: collections.abc.Collection[str]) -> str:
    """Such as `GPU 3`, `GPU 0, 1` or `MIG device of GPU 0`."""
    name = f"GPU {_listed(card.index for card in cards)}"
    parts = sum(device.startswith("MIG-") for card in cards for device in card.devices
                if device in devices)  # fmt: skip
    if not parts:
        return name
    return f"MIG device of {name}" if parts == 1 else f"{parts} MIG devices of {name}"


def _figures(gpu: Used) -> str:
    words = [] if gpu.busy is None else [f"{gpu.busy:.0f} % busy"]
    if gpu.peak_mib is not None:
        of_all = f" of {gpu.total_mib / 1024:.0f}" if gpu.total_mib else ""
        words.append(f"memory peak {_gib(gpu.peak_mib)}{of_all} GiB")
    return ", ".join(words)


def _gib(mib: int) -> str:
    gib = mib / 1024
    return f"{gib:.0f}" if gib >= 10 else f"{gib:.1f}"


def _energy(joules: float) -> str:
    hours = joules / 3.6e6
    return f"{hours:.1f} kWh" if hours >= 0.1 else f"{hours * 1000:.0f} Wh"


def _seconds(seconds: float) -> str:
    return _long(seconds) if seconds >= 120 else f"{max(0, seconds):.0f} s"


def _long(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _listed(indexes: collections.abc.Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indexes)))


def _line(text: str) -> str:
    """One line for a log; whatever a driver says, no letter of it steers a terminal."""
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return f"{MARK}{plain}"[:_MOST]
