# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep what the self-test needs to know about this unit when it runs without Juju."""

import dataclasses
import json
import pathlib
import typing

from gpu_agent.model.inventory import Gpu, MigDevice, Vendor
from machine import files

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/selftest.json")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What this unit's GPUs are tested for. An empty minimum is not tested.

    Attributes:
        unit: Juju's name of this unit, for commands in remedies: `worker/0`.
        vendor: the vendor of the GPUs, as in the option gpu-vendor.
        gpus: the GPUs that tasks may get, quarantined ones included; `index` is the number that
            the operator sees. Empty if no GPU can be used yet.
        allocation: `exclusive` or `shared`; a change triggers a new test of isolation
            (gpu_selftest.last_pass).
        min_gpu_memory_gib: the nominal size, in GiB; 0: no minimum.
        min_compute_capability: such as `7.0`.
        min_driver_version: such as `535` or `580.65.06`.
        min_cpus: the number of processors; 0: no minimum.
        min_memory_gib: the machine's nominal memory, in GiB; 0: no minimum.
        gpu_driver: the option gpu-driver, for the text of remedies.
        auto_reboot: whether the charm may reboot for the driver, for the same.
        allow_vulnerable_toolkit: whether a toolkit with known vulnerabilities only warns.
        files: what each file of the GPU runtime must be, by absolute path
            (gpu_agent.runtime.install).
        wheels: path of the charm resource selftest-wheels; empty if not given.
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
        """The name of this unit's application, for commands in remedies."""
        return self.unit.partition("/")[0]

    def minimums(self, key: str, value: str) -> str:
        """Return the option `minimums` with one key changed, as `juju config` takes it.

        Args:
            key: such as `gpu-memory`.
            value: such as `8GiB`; empty: leave the key out.
        """
        gib = {"memory": self.min_memory_gib, "gpu-memory": self.min_gpu_memory_gib}
        values = {
            "cpus": str(self.min_cpus or ""),
            **{name: f"{size}GiB" if size else "" for name, size in gib.items()},
            "compute-capability": self.min_compute_capability,
            "driver": self.min_driver_version,
            key: value,
        }
        return "minimums=" + ",".join(f"{name}={text}" for name, text in values.items() if text)


def write(settings: Settings) -> bool:
    """Write the settings for the self-test. Return True if that changed anything."""
    files.ensure_directory(PATH.parent)
    return files.ensure_file(PATH, json.dumps(_plain(settings), indent=1) + "\n")


def read() -> Settings | None:
    """Return the settings; None if tasks get no GPU.

    Also None if the file is damaged or of another revision of the charm. The charm rewrites it at
    its next event.
    """
    try:
        found: dict[str, typing.Any] = json.loads(PATH.read_bytes())
        found["gpus"] = tuple(_gpu(one) for one in found["gpus"])
        return Settings(**found)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove() -> bool:
    """Remove the settings. Return True if there were any."""
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
