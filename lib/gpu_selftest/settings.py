# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test must know of this unit where Juju is not there to tell: at boot, by hand."""

import dataclasses
import json
import pathlib
import typing

from gpu_agent.model.inventory import Gpu, MigDevice, Vendor
from machine import files

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/selftest.json")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What this unit's GPUs are tested for. Empty minimums ask for nothing.

    Attributes:
        unit: Juju's name of this unit, as the operator's next command names it: `worker/0`.
        vendor: whose GPUs are looked for, as the option gpu-vendor says it.
        gpus: those that tasks may get, quarantined ones included; `index` is what the operator
            knows each by. Empty where none can be used yet.
        allocation: `exclusive` or `shared`; a change of it has isolation tested anew (proof).
        min_gpu_memory_gib: as sold, in GiB; 0: no minimum.
        min_compute_capability: such as `7.0`.
        min_driver_version: such as `535` or `580.65.06`.
        min_cpus: how many processors the machine must have; 0: no minimum.
        min_memory_gib: its memory as sold, in GiB; 0: no minimum.
        gpu_driver, auto_reboot: as the options say it, for the words of remedies.
        allow_vulnerable_toolkit: whether a toolkit with known vulnerabilities only warns.
        files: absolute path of each file of the wrapper to what it must be
            (gpu_agent.runtime.install).
        wheels: path of the charm resource selftest-wheels; empty when not given.
    """

    unit: str
    vendor: str = "auto"
    gpus: tuple[Gpu, ...] = ()
    allocation: str = "exclusive"
    min_gpu_memory_gib: int = 0
    min_compute_capability: str = ""
    min_driver_version: str = ""
    min_cpus: int = 0
    min_memory_gib: int = 0
    gpu_driver: str = "auto"
    auto_reboot: bool = False
    allow_vulnerable_toolkit: bool = False
    files: dict[str, str] = dataclasses.field(default_factory=dict[str, str])
    wheels: str = ""

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]


def write(settings: Settings) -> bool:
    """Keep them for the self-test. Return True if they were others before."""
    files.ensure_directory(PATH.parent)
    return files.ensure_file(PATH, json.dumps(_plain(settings), indent=1) + "\n")


def read() -> Settings | None:
    """What was kept; None where tasks get no GPU.

    None too where it is damaged, or of another version of the charm, which writes it anew at its
    next event.
    """
    try:
        found: dict[str, typing.Any] = json.loads(PATH.read_bytes())
        found["gpus"] = tuple(_gpu(one) for one in found["gpus"])
        return Settings(**found)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove() -> bool:
    """Forget them. Return True if there were any."""
    return files.ensure_absent(PATH)


def _plain(settings: Settings) -> dict[str, typing.Any]:
    plain = dataclasses.asdict(settings)
    for gpu in plain["gpus"]:
        gpu["vendor"] = gpu["vendor"].value
    return plain


def _gpu(found: dict[str, typing.Any]) -> Gpu:
    found["vendor"] = Vendor(found["vendor"])
    found["mig"] = tuple(MigDevice(**one) for one in found["mig"])
    found["nodes"] = tuple(found["nodes"])
    return Gpu(**found)
