# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the compute checks have found so far, and the verdict on all rates in the end."""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Check, Outcome, Result, Said
from gpu_selftest.compute import baseline, floors, judge
from machine import files

ON_CPU: typing.Final = "on the CPU: proves no GPU"


@dataclasses.dataclass(frozen=True)
class Target:
    """What is tested at a time: a GPU, one of its MIG devices, or the CPU.

    Attributes:
        gpu: the GPU; None for the CPU.
        device: the id that a program names it by.
    """

    gpu: Gpu | None
    device: str

    @property
    def uuid(self) -> str:
        """The GPU's id, for results."""
        return self.gpu.uuid if self.gpu else ""

    @property
    def name(self) -> str:
        """What the operator knows it by."""
        if not self.gpu:
            return "the CPU"
        mig = f" ({self.device})" if self.device != self.uuid else ""
        return f"GPU {self.gpu.index}{mig}"

    @property
    def model(self) -> str:
        """What its siblings have in common with it."""
        if not self.gpu:
            return ""
        profiles = [mig.profile for mig in self.gpu.mig if mig.uuid == self.device]
        return " ".join([self.gpu.model, *profiles])

    @property
    def floor(self) -> floors.Model | None:
        """What its model must reach; nobody says that of a part of a GPU."""
        if not self.gpu or self.gpu.mig_enabled:
            return None
        path = pathlib.Path("/sys/bus/pci/devices", self.gpu.pci_address, "device")
        return floors.find(files.read_text(path) or "")


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate that was measured, and is judged when all are there.

    Attributes:
        floor: the attribute of floors.Model that it is held against.
    """

    check: Check
    target: Target
    value: float
    text: str
    floor: str
    measure: judge.Measure


class Findings:
    """What has come out so far."""

    def __init__(self, device: str, unit: str) -> None:
        """Nothing so far.

        Args:
            device: `cuda` or `cpu`.
            unit: such as `worker/0`, for remedies.
        """
        self._on_cpu = device == "cpu"
        self._again = f"; then `juju run {unit} gpu-selftest level=compute`"
        self.results: list[Result] = []
        self.rates: list[Rate] = []

    def add(
        self,
        check: Check,
        target: Target,
        said: Said,
        source: str | None = None,
    ) -> None:
        """One check on one target; where `source` is None its threshold is from the check's."""
        named = bool(target.gpu and target.gpu.mig_enabled)
        text = f"{said.text} ({target.device})" if named else said.text
        remedy = said.remedy or check.remedy
        made = check.result(
            said.outcome,
            f"{text} ({ON_CPU})" if self._on_cpu else text,
            gpu=target.uuid,
            value=said.value if isinstance(said.value, str | None) else float(f"{said.value:.4g}"),
            threshold=said.threshold,
            remedy=remedy + self._again if remedy else "",
        )
        self.results.append(made if source is None else dataclasses.replace(made, source=source))

    def prevent(self, checks: collections.abc.Iterable[Check], target: Target, why: str) -> None:
        """Checks that can't be made on a target."""
        for check in checks:
            self.add(check, target, Said(Outcome.PREVENTED, why))

    def judge(self, key: str) -> None:
        """Judge all rates, and keep those of the GPUs that have passed everything.

        Args:
            key: names the software that measured, so that like is compared with like.
        """
        for rate in self.rates:
            floor = judge.floor_of(rate.target.floor, rate.floor)
            own = baseline.own(rate.target.device, key).get(rate.check.id)
            siblings = [
                other.value
                for other in self.rates
                if other.check == rate.check
                and other.target.model == rate.target.model
                and other.target != rate.target
            ]
            unit = rate.check.unit
            verdict = judge.judge(rate.value, unit, rate.measure, floor, own, siblings)
            text = rate.text if verdict.outcome is Outcome.PASSED else f"slow: {rate.text}"
            said = Said(verdict.outcome, text, rate.value, threshold=verdict.threshold)
            self.add(rate.check, rate.target, said, verdict.source)
        if not self._on_cpu:
            self._keep(key)

    def _keep(self, key: str) -> None:
        noticed = (Outcome.FAILED, Outcome.WARNING)
        unwell = {result.gpu for result in self.results if result.outcome in noticed}
        for target in {rate.target for rate in self.rates if rate.target.uuid not in unwell}:
            rates = {rate.check.id: rate.value for rate in self.rates if rate.target == target}
            baseline.keep(target.device, key, rates)
