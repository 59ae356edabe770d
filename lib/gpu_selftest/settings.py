# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep what the self-test needs to know about this unit when it runs without Juju."""

import dataclasses
import json
import pathlib
import typing

from gpu_agent.gpu.vendors import registry
from gpu_agent.model.inventory import Gpu, MigDevice
from gpu_agent.runtime import runc as runcs
from machine import files

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/selftest.json")
VERSION: typing.Final = 1

# The runc of a unit whose settings have no version. Every such unit has this one.
_RUNC_BEFORE: typing.Final = "/opt/concourse/current/bin/runc"


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
        programs: those files that the CI system put beside the GPU runtime, by absolute path; its
            own checks compare them.
        runc: absolute path of the runc that starts tasks; empty: that of the machine.
        runc_remedy: what to do if it is missing.
        checks: the CI system's program whose results join the report: arguments of Python
            (gpu_selftest.quick.ci_checks); empty: there is none.
        disks: folders that need space for jobs.
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
    programs: tuple[str, ...] = ()
    runc: str = ""
    runc_remedy: str = "see juju status"
    checks: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()

    @property
    def application(self) -> str:
        """The name of this unit's application, for commands in remedies."""
        return self.unit.partition("/")[0]

    def runc_path(self, root: pathlib.Path = pathlib.Path("/")) -> str:
        """Return the path of the runc that starts tasks, whether or not it is there.

        Args:
            root: where the machine's files are.
        """
        return runcs.for_tasks(self.runc, root)

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


def write(settings: Settings, path: pathlib.Path = PATH) -> bool:
    """Write the settings for the self-test. Return True if that changed anything."""
    files.ensure_directory(path.parent)
    content = {"version": VERSION, **dataclasses.asdict(settings)}
    return files.ensure_file(path, json.dumps(content, indent=1) + "\n")


def read(path: pathlib.Path = PATH) -> Settings | None:
    """Return the settings; None if tasks get no GPU.

    Also None if the file is damaged or of a later revision of the charm. The charm rewrites it at
    its next event. A file without a version is of an earlier revision. The charm installs the
    self-test before it writes the settings, so a boot between the two meets such a file.
    """
    try:
        found: dict[str, typing.Any] = json.loads(path.read_bytes())
        version = found.pop("version", None)
        if version not in (None, VERSION):
            return None
        if version is None:
            found["runc"] = _RUNC_BEFORE
        if found["vendor"] != "auto":
            registry.find(found["vendor"])
        found["gpus"] = tuple(_gpu(one) for one in found["gpus"])
        for name in ("programs", "checks", "disks"):
            found[name] = _texts(found.get(name, []))
        return _checked(Settings(**found))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remove(path: pathlib.Path = PATH) -> bool:
    """Remove the settings. Return True if there were any."""
    return files.ensure_absent(path)


def _texts(found: object) -> tuple[str, ...]:
    """Return a list of texts as a tuple; raise TypeError if it is something else."""
    words = typing.cast("list[object]", found) if isinstance(found, list) else [None]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("not a list of texts")
    return tuple(str(word) for word in words)


def _checked(settings: Settings) -> Settings:
    """Return the settings; raise TypeError if a value has another type than its field."""
    empty = Settings("")
    for field in dataclasses.fields(Settings):
        if type(getattr(settings, field.name)) is not type(getattr(empty, field.name)):
            raise TypeError(f"{field.name} has another type")
    return settings


def _gpu(found: dict[str, typing.Any]) -> Gpu:
    found["vendor"] = registry.find(found["vendor"]).name
    found["mig"] = tuple(MigDevice(**one) for one in found["mig"])
    found["nodes"] = tuple(found["nodes"])
    return Gpu(**found)
