# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep the rates that each GPU reached when it passed, to compare later runs with."""

import collections.abc
import dataclasses
import json
import pathlib
import typing

from gpu_selftest import results
from machine import files

_Kept = dict[str, dict[str, dict[str, float]]]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """The rates of earlier runs.

    Attributes:
        home: the folder of the file that has them.
    """

    home: pathlib.Path = results.HOME

    @property
    def path(self) -> pathlib.Path:
        """The file that has them."""
        return self.home / "good.json"

    def own(self, device: str, key: str) -> dict[str, float]:
        """Return the rates of a device's last good run, by the check's id; empty without one.

        Args:
            device: id of the GPU or MIG device.
            key: names the measuring software; rates of other software can't be compared.
        """
        return self._read().get(device, {}).get(key, {})

    def keep(self, device: str, key: str, rates: collections.abc.Mapping[str, float]) -> None:
        """Keep the rates that a GPU reached in a run that it passed.

        The best rate is kept, so that a GPU that gets slower little by little is noticed in the
        end. Rates of other software are dropped.
        """
        kept = self._read()
        before = kept.get(device, {}).get(key, {})
        best = {check: max(rate, before.get(check, 0.0)) for check, rate in rates.items()}
        kept[device] = {key: {**before, **best}}
        files.ensure_directory(self.home)
        files.ensure_file(self.path, json.dumps(kept, indent=1) + "\n")

    def _read(self) -> _Kept:
        try:
            found = json.loads(files.read_text(self.path) or "{}")
        except ValueError:
            return {}  # damaged: the next good run starts again
        return typing.cast("_Kept", found) if isinstance(found, dict) else {}
