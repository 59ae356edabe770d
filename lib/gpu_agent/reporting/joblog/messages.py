# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lines about its GPUs in the log of a step, for the author of the job. Pure.

Each is one line of printable ASCII, short enough to be written in one piece.
"""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.card import Card
from gpu_agent.model.decisions import Tell

MARK: typing.Final = "[gpu-ci] "
_MOST: typing.Final = 400  # characters in a line; a pipe takes a page of memory in one piece
_NAMED: typing.Final = 4  # up to so many GPUs are named; of more only the number is given

# Explanations of the Xids that NVIDIA attributes to the application
# (gpu_agent.fault_policy.fault_table.JOB_XIDS).
_MEANT: typing.Final = {
    13: "a CUDA kernel of this job made an illegal access or instruction. This is usually a "
    "program bug: run compute-sanitizer to find the line, or CUDA_LAUNCH_BLOCKING=1 to find the "
    "call",
    31: "this job accessed GPU memory that it did not allocate, like a segmentation fault. This "
    "is usually a program bug: run compute-sanitizer to find the line",
    43: "the driver ended the program's work on the GPU after a program error. The GPU is not "
    "faulty: look for the first error above",
    45: "the program's work on the GPU was ended, for example after an error, an abort or a kill. "
    "The GPU is not faulty: look for the first error above",
}


@dataclasses.dataclass(frozen=True)
class Used:
    """What one GPU has done for a step so far; None: unknown.

    Attributes:
        card: the GPU.
        busy: share of the time in which a compute kernel ran, in percent.
        peak_mib: the most memory allocated at a poll, in MiB.
        total_mib: the GPU's memory, in MiB.
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
    """Name the GPUs of a step that starts.

    Args:
        cards: its GPUs, whole or in part; at least one.
        devices: ids of its GPUs or MIG devices.
        waited: how long it waited for them, in seconds; None: unknown.
        driver: the driver's version; empty: unknown.
        cuda: the highest CUDA version of that driver; empty: unknown.
    """
    models = list(dict.fromkeys(card.model for card in cards))
    if len(cards) <= _NAMED and len(models) == 1:
        having = f"{_what(cards, devices)}{_in_the_task(cards, devices)}: {models[0]}"
    elif len(cards) <= _NAMED:
        having = ", ".join(f"{_what([card], devices)}: {card.model}" for card in cards)
    else:
        having = f"{len(cards)} GPUs: {', '.join(models)}"
    words = [having, f"driver {driver}" if driver else "", f"CUDA {cuda}" if cuda else ""]
    line = ", ".join(filter(None, words))
    return _line(line + ("" if waited is None else f"; waited {_seconds(waited)}"))


def fault(card: Card, tell: Tell, *, out: bool) -> str:
    """Explain a fault of a step's GPU.

    Args:
        card: the GPU.
        tell: the fault.
        out: whether the GPU is unavailable to new tasks.
    """
    gpu = f"GPU {card.index}"
    if tell.hardware:
        now = "It is out of use now; run the build again" if out else "Run the build again"
        return _line(f"{gpu} failed ({tell.text}): hardware, not your change. {now}")
    if tell.xid in _MEANT:
        return _line(f"{gpu}: Xid {tell.xid}: {_MEANT[tell.xid]}")
    return _line(
        f"{gpu}: {tell.text}. The work on it is lost. A hanging GPU kernel in your program can "
        "cause this. If it repeats on other GPUs, debug your program first"
    )


def used(seconds: float, gpus: collections.abc.Sequence[Used], energy_j: float | None) -> str:
    """Sum up the use so far, such as `14 min: GPU 71 % busy, memory peak 61 of 80 GiB`.

    Args:
        seconds: time since the step got its GPUs.
        gpus: each GPU; at least one.
        energy_j: energy that all of them used for it, in joules; None: unknown.
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
    """Warn that a step holds GPUs without using them.

    Args:
        cards: the unused GPUs; at least one.
        seconds: how long the step has held them.
        ends: whether the step is killed for it.
    """
    gpus = f"GPU {_listed(card.index for card in cards)}"
    what = f"no process has used {gpus} in {_long(seconds)}. Is the framework a CPU-only package? "
    what += "Then install its GPU package. "
    advice = "If this step needs no GPU, set the param GPU_COUNT to 0"
    if ends:
        return _line(f"{what}This step is killed for it (idle-gpu-action=fail). {advice}")
    return _line(what + advice)


def _what(cards: collections.abc.Sequence[Card], devices: collections.abc.Collection[str]) -> str:
    """Such as `GPU 3`, `GPU 0, 1` or `MIG device of GPU 0`."""
    name = f"GPU {_listed(card.index for card in cards)}"
    parts = sum(device.startswith("MIG-") for card in cards for device in card.devices
                if device in devices)  # fmt: skip
    if not parts:
        return name
    return f"MIG device of {name}" if parts == 1 else f"{parts} MIG devices of {name}"


def _in_the_task(
    cards: collections.abc.Sequence[Card], devices: collections.abc.Collection[str]
) -> str:
    """How programs of the task number its GPUs, if not by the worker's numbers.

    CUDA does not specify its order of several GPUs, so they are not paired.
    """
    is_divided = any(device.startswith("MIG-") for device in devices)
    if is_divided or sorted(card.index for card in cards) == list(range(len(cards))):
        return ""
    if len(cards) == 1:
        return " (GPU 0 in this task)"
    return " (numbered from 0 in this task)"


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
    """One line for a log; characters from a driver that could control a terminal become `?`."""
    plain = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return f"{MARK}{plain}"[:_MOST]
