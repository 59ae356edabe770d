# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep the rates that each GPU reached when it passed, to compare later runs with."""

import collections.abc
import json
import typing

from gpu_selftest import results
from machine import files

PATH: typing.Final = results.HOME / "good.json"

_Kept = dict[str, dict[str, dict[str, float]]]


def own(device: str, key: str) -> dict[str, float]:
    """Return the rates of a device's last good run, by the check's id; empty without one.

    Args:
        device: id of the GPU or MIG device.
        key: names the measuring software; rates of other software can't be compared.
    """
    return _read().get(device, {}).get(key, {})


def keep(device: str, key: str, rates: collections.abc.Mapping[str, float]) -> None:
    """Keep the rates that a GPU reached in a run that it passed.

    The best rate is kept, so that a GPU that gets slower little by little is noticed in the end.
    Rates of other software are dropped.
    """
    kept = _read()
    before = kept.get(device, {}).get(key, {})
    best = {check: max(rate, before.get(check, 0.0)) for check, rate in rates.items()}
    kept[device] = {key: {**before, **best}}
    files.ensure_directory(PATH.parent)
    files.ensure_file(PATH, json.dumps(kept, indent=1) + "\n")


def _read() -> _Kept:
    try:
        found = json.loads(files.read_text(PATH) or "{}")
    except ValueError:
        return {}  # damaged: the next good run starts again
    return typing.cast("_Kept", found) if isinstance(found, dict) else {}
