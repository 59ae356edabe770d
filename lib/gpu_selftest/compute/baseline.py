# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What each GPU reached when it was well: kept, so that a later run can be held against it."""

import collections.abc
import json
import typing

from gpu_selftest import results
from machine import files

PATH: typing.Final = results.HOME / "good.json"

_Kept = dict[str, dict[str, dict[str, float]]]


def own(device: str, key: str) -> dict[str, float]:
    """The rates of a GPU's or MIG device's last good run, by the check's id; empty without one.

    Args:
        device: its id.
        key: names the software that measured; rates of another can't be compared.
    """
    return _read().get(device, {}).get(key, {})


def keep(device: str, key: str, rates: collections.abc.Mapping[str, float]) -> None:
    """Keep what a GPU reached in a run that it passed.

    The best is kept, so that a GPU that gets a little slower each time is noticed in the end. What
    another software measured is forgotten.
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
        return {}  # damaged: the next good run begins anew
    return typing.cast("_Kept", found) if isinstance(found, dict) else {}
