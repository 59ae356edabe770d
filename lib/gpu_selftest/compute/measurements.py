# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Collect the results of the compute checks, and judge all rates at the end."""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent.model.inventory import Gpu
from gpu_selftest.check import Check, Outcome, Result, Said
from gpu_selftest.compute import floors, judge
from gpu_selftest.compute.baseline import Baseline
from machine import files

ON_CPU: typing.Final = "on the CPU: proves nothing about a GPU"


@dataclasses.dataclass(frozen=True)
class Target:
    """One thing to test: a GPU, one of its MIG devices, or the CPU.

    Attributes:
        gpu: the GPU; None for the CPU.
        device: the id by which programs select it.
    """

    gpu: Gpu | None
    device: str

    @property
    def uuid(self) -> str:
        """The GPU's id, for results."""
        return self.gpu.uuid if self.gpu else ""

    @property
    def name(self) -> str:
        """The name that the operator knows."""
        if not self.gpu:
            return "the CPU"
        mig = f" ({self.device})" if self.device != self.uuid else ""
        return f"GPU {self.gpu.index}{mig}"

    @property
    def model(self) -> str:
        """The model, which is the same for siblings."""
        if not self.gpu:
            return ""
        profiles = [mig.profile for mig in self.gpu.mig if mig.uuid == self.device]
        return " ".join([self.gpu.model, *profiles])

    @property
    def floor(self) -> floors.Model | None:
        """The least rates of its model; None for a part of a GPU, which no source lists."""
        if not self.gpu or self.gpu.mig_enabled:
            return None
        path = pathlib.Path("/sys/bus/pci/devices", self.gpu.pci_address, "device")
        return floors.find(files.read_text(path) or "")


@dataclasses.dataclass(frozen=True)
class Rate:
    """A measured rate, judged when all rates are known.

    Attributes:
        floor: the attribute of floors.Model that it is compared with.
    """

    check: Check
    target: Target
    value: float
    text: str
    floor: str
    measure: judge.Measure


class Findings:
    """The results so far."""

    def __init__(self, device: str, unit: str, baseline: Baseline) -> None:
        """Start without results.

        Args:
            device: `cuda` or `cpu`.
            unit: such as `worker/0`, for remedies.
            baseline: the rates of earlier runs; those of GPUs that pass are kept there.
        """
        self._on_cpu = device == "cpu"
        self._baseline = baseline
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
        """Add the result of one check on one target; `source` replaces the check's own."""
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
        source = made.source if source is None else source
        self.results.append(dataclasses.replace(made, source=source, cause=said.cause))

    def not_run(
        self, checks: collections.abc.Iterable[Check], target: Target, why: str, cause: str = ""
    ) -> None:
        """Add the results of checks that can't run on a target; `cause` is as in Result."""
        for check in checks:
            self.add(check, target, Said(Outcome.NOT_RUN, why, cause=cause))

    def judge(self, key: str) -> None:
        """Judge all rates, and keep those of GPUs that passed everything.

        Args:
            key: names the measuring software, so that only comparable rates are compared.
        """
        for rate in self.rates:
            floor = judge.floor_of(rate.target.floor, rate.floor)
            own = self._baseline.own(rate.target.device, key).get(rate.check.id)
            siblings = [
                other.value
                for other in self.rates
                if other.check == rate.check
                and other.target.model == rate.target.model
                and other.target != rate.target
            ]
            unit = rate.check.unit
            verdict = judge.judge(rate.value, unit, rate.measure, floor, own, siblings)
            cause = "" if verdict.outcome is Outcome.PASSED else "slow"
            text = f"{cause}: {rate.text}" if cause else rate.text
            said = Said(verdict.outcome, text, rate.value, "", verdict.threshold, cause)
            self.add(rate.check, rate.target, said, verdict.source)
        if not self._on_cpu:
            self._keep(key)

    def _keep(self, key: str) -> None:
        noticed = (Outcome.FAILED, Outcome.WARNING)
        unwell = {result.gpu for result in self.results if result.outcome in noticed}
        for target in {rate.target for rate in self.rates if rate.target.uuid not in unwell}:
            rates = {rate.check.id: rate.value for rate in self.rates if rate.target == target}
            self._baseline.keep(target.device, key, rates)
