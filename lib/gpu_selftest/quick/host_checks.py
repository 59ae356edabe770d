# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check the machine: earlier GPUs, driver, toolkit, files, size, disk, and the CI system."""

import collections.abc
import dataclasses
import os
import pathlib
import re
import typing

from gpu_agent.availability import known_gpus as known
from gpu_agent.availability.known_gpus import Known
from gpu_agent.diagnosis import machine as facts
from gpu_agent.diagnosis import states as host_states
from gpu_agent.diagnosis import toolkit_versions as toolkit_policy
from gpu_agent.diagnosis.facts import Facts, Options, pass_in
from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors.vendor import Vendor
from gpu_agent.model import errors, versions
from gpu_agent.model.host import Driver, Machine
from gpu_agent.model.inventory import Gpu, Inventory, State
from gpu_selftest.check import Check, Level, Outcome, Result
from gpu_selftest.quick import ci_checks, device_nodes, disk, host_size
from gpu_selftest.quick import runtime_checks as wrapper_checks
from gpu_selftest.quick.ci_checks import Answer
from gpu_selftest.settings import Settings
from machine import exhaustion, packages

INVENTORY: typing.Final = Check(
    "inventory",
    Level.QUICK,
    "every GPU that this machine ever had is present and answers",
    source=str(known.PATH),
)
DRIVER: typing.Final = Check(
    "driver",
    Level.QUICK,
    "the kernel's driver and the vendor's library match, and find the GPUs",
)
DRIVER_VERSION: typing.Final = Check(
    "driver-version",
    Level.QUICK,
    "the driver has the minimum version",
    source="option minimums (driver)",
)
TOOLKIT: typing.Final = Check(
    "toolkit",
    Level.QUICK,
    "NVIDIA's container toolkit has no known vulnerability",
    source="NVIDIA's product-security bulletins up to 5850",
)
CUDA_TOOLKIT: typing.Final = Check(
    "cuda-toolkit",
    Level.QUICK,
    "the report names the CUDA toolkits on the machine, which no task needs",
    condemns=False,
)
CHECKS: typing.Final = (
    INVENTORY,
    DRIVER,
    DRIVER_VERSION,
    TOOLKIT,
    CUDA_TOOLKIT,
    wrapper_checks.RUNTIME,
    wrapper_checks.CONFIGURATION,
    device_nodes.CHECK,
    *host_size.CHECKS,
    ci_checks.CHECK,
    disk.CHECK,
)

# Where NVIDIA's installer and packages, and Debian's and Ubuntu's own package, put it.
_CUDA_HOMES: typing.Final = ("usr/local/cuda", "usr/local/cuda-*", "opt/cuda", "usr/lib/cuda")
# The files that have its version: from CUDA 11.1 on, and before.
_CUDA_VERSIONS: typing.Final = (
    ("version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([0-9.]{1,20})"'),
    ("version.txt", r"^CUDA Version ([0-9.]{1,20})"),
)


@dataclasses.dataclass(frozen=True)
class Look:
    """The state of the machine.

    Attributes:
        inventory: its GPUs now.
        machine: its other software.
        known: the GPUs that it ever had.
        damage: why the known GPUs can't be read; empty if they can.
        unknown: why the software can't be determined; empty if it can.
        root: the root of the machine's files.
        driver: the state of NVIDIA's driver, if the GPUs are NVIDIA's.
    """

    inventory: Inventory
    machine: Machine
    known: tuple[Known, ...] = ()
    damage: str = ""
    unknown: str = ""
    root: pathlib.Path = pathlib.Path("/")
    driver: Driver = Driver()

    @property
    def known_path(self) -> pathlib.Path:
        """The file of the known GPUs."""
        return self.root / str(known.PATH).lstrip("/")

    @property
    def lost(self) -> tuple[Known, ...]:
        """GPUs that were here and are missing."""
        return tuple(gpu for gpu in self.known if self._is_lost(gpu))

    def is_withdrawn(self, gpu: Known) -> bool:
        """Return whether a GPU that is missing in this container is still in its host."""
        there = (self.root / "sys/bus/pci/devices" / gpu.pci_address).exists()
        answers_not = gpu.pci_address in self.inventory.lost
        return bool(self.machine.instance) and there and not answers_not

    def _is_lost(self, gpu: Known) -> bool:
        """Return whether a GPU is missing because of a fault, or because someone removed it.

        GPUs of some vendors have their ids from their place, or are partitions of a card, which
        come and go with its configuration. A GPU of another vendor than the one in use is not
        lost as long as it is on the bus.
        """
        if gpu.uuid in {one.uuid for one in self.inventory.gpus}:
            return False
        if gpu.vendor != self.inventory.vendor:
            return not (self.root / "sys/bus/pci/devices" / gpu.pci_address).exists()
        places = {one.pci_address for one in self.inventory.gpus}
        return registry.find(gpu.vendor).lasting_ids or gpu.pci_address not in places

    @property
    def all_lost(self) -> bool:
        """Whether no GPU is left because all are lost, so that the driver is not to blame."""
        state = self.inventory.state
        gone = state is State.NO_GPU or (state is State.NVML_ERROR and bool(self.inventory.lost))
        return gone and any(gpu.allowed for gpu in self.lost)


def look(
    settings: Settings,
    root: pathlib.Path = pathlib.Path("/"),
    *,
    inventory: collections.abc.Callable[[str], Inventory] = detect.detect,
    machine: collections.abc.Callable[[], Machine] = facts.machine,
    vendor: collections.abc.Callable[[str], Vendor] = registry.find,
) -> Look:
    """Return the state of the machine. NVML may take long, or hang with its driver.

    Args:
        settings: those of the self-test.
        root: the root of the machine's files.
        inventory: returns the GPUs of the vendor in the settings.
        machine: returns the other software.
        vendor: returns the vendor of that name.
    """
    seen = Look(inventory(settings.vendor), Machine(facts.architecture()), root=root)
    try:
        seen = dataclasses.replace(seen, machine=machine())
        driver = vendor(seen.inventory.vendor).driver()
        seen = dataclasses.replace(seen, driver=driver)
    except (errors.UnknownError, packages.PackageError) as error:
        seen = dataclasses.replace(seen, unknown=str(error))
    try:
        return dataclasses.replace(seen, known=known.read(seen.known_path))
    except known.KnownError as error:
        return dataclasses.replace(seen, damage=str(error))


def run(
    settings: Settings, look: Look, answer: Answer, statvfs: disk.Statvfs = os.statvfs
) -> list[Result]:
    """Make the checks of the machine. GPUs that are new are known from now on.

    If a check can't run because another one failed, its text names that one: `driver failed`.

    Args:
        settings: those of the self-test.
        look: the state of the machine.
        answer: what the CI system's own checks found.
        statvfs: tells the space of a file system.
    """
    found = [*_inventory(settings, look), _driver(settings, look)]
    usable = look.inventory.state is State.READY
    culprit = "inventory" if look.all_lost else "driver"
    not_run = f"{culprit} failed"
    found.append(_driver_version(settings, look, "" if usable else not_run))
    found.append(_toolkit(settings, look))
    found.append(_cuda_toolkit(look.root))
    blocked = [result.check for result in found if result.outcome is Outcome.FAILED]
    found += _files(settings, look, f"{blocked[0]} failed" if blocked else "")
    if gpus := _allowed(settings, look):
        found += [
            device_nodes.CHECK.result(Outcome.NOT_RUN, "inventory failed", gpu=result.gpu)
            for result in found
            if result.check == INVENTORY.id and result.outcome is Outcome.FAILED
        ]
        found += device_nodes.run(gpus, look.root)
    else:
        why = "inventory failed" if usable else not_run
        found.append(device_nodes.CHECK.result(Outcome.NOT_RUN, why))
    found += host_size.run(settings, look.root)
    room = disk.run(settings, look.root, answer.copies, statvfs)
    is_full = room.outcome is Outcome.FAILED
    found += [_named_by_disk(result) if is_full else result for result in answer.results]
    found.append(room)
    # On a full disk, the failing write would lose the verdict.
    if usable and not is_full:
        _learn(settings, look)
    return found


def _named_by_disk(result: Result) -> Result:
    """Return a result that names the full disk if it did not run because of that."""
    if result.outcome is not Outcome.NOT_RUN or not exhaustion.is_told_by(result.text):
        return result
    return dataclasses.replace(result, text=f"{disk.CHECK.id} failed")


def _learn(settings: Settings, look: Look) -> None:
    """Add the GPUs that are here to the known ones, with the operator's indexes.

    GPUs of another vendor are marked as not for tasks. Partitions that are gone are forgotten.
    """
    if look.damage:
        return
    path = look.known_path
    indexes = {gpu.uuid: gpu.index for gpu in settings.gpus}
    here = {
        gpu.uuid: Known(
            uuid=gpu.uuid,
            vendor=gpu.vendor,
            model=gpu.model,
            pci_address=gpu.pci_address,
            index=indexes.get(gpu.uuid, gpu.index),
            allowed=gpu.uuid in indexes or not indexes,
        )
        for gpu in look.inventory.gpus
    }
    others = [gpu for gpu in look.known if gpu.uuid not in here and gpu not in look.lost]
    # A GPU in whose place there is another card was removed.
    places = {gpu.pci_address for gpu in here.values()}
    foreign = [
        gpu
        for gpu in others
        if gpu.vendor != look.inventory.vendor and gpu.pci_address not in places
    ]
    known.add(
        (*here.values(), *(dataclasses.replace(gpu, allowed=False) for gpu in foreign)), path
    )
    for gpu in others:
        if gpu not in foreign:
            known.forget(gpu.uuid, path)


def _allowed(settings: Settings, look: Look) -> tuple[Gpu, ...]:
    """Return the GPUs that tasks may get, in their present state; all if that is not decided."""
    uuids = {gpu.uuid for gpu in settings.gpus} or {gpu.uuid for gpu in look.inventory.gpus}
    return tuple(gpu for gpu in look.inventory.gpus if gpu.uuid in uuids)


def _inventory(settings: Settings, look: Look) -> list[Result]:
    inventory = look.inventory
    if look.damage:
        again = f"then juju run {settings.unit} gpu-selftest"
        remedy = f"sudo rm {known.PATH}, if no GPU is missing; {again}"
        return [INVENTORY.result(Outcome.WARNING, look.damage, remedy=remedy)]
    if inventory.state is not State.READY and not look.all_lost:
        return [INVENTORY.result(Outcome.NOT_RUN, "driver failed")]
    missed = [_missed(settings, look, gpu) for gpu in look.lost]
    strangers = set(inventory.lost) - {gpu.pci_address for gpu in look.known}
    missed += [
        INVENTORY.result(
            Outcome.WARNING,
            f"the driver lists a GPU at {address} that never answered",
            remedy=f"sudo dmesg | grep -e {address} -e NVRM; reboot, or reseat the card",
        )
        for address in sorted(strangers)
    ]
    if any(result.outcome is Outcome.FAILED for result in missed):
        return missed
    earlier = {gpu.uuid for gpu in look.known}
    new = [gpu for gpu in inventory.gpus if gpu.uuid not in earlier]
    count = len(inventory.gpus)
    text = f"{count} GPU{'s' * (count != 1)}"
    if look.known and new:
        text += ", new: " + ", ".join(f"{gpu.model} at {gpu.pci_address}" for gpu in new)
    return [INVENTORY.result(Outcome.PASSED, text, value=count), *missed]


def _missed(settings: Settings, look: Look, gpu: Known) -> Result:
    """Return the result for a missing GPU. It is a failure only if tasks could get the GPU.

    A GPU that was removed from a container is a warning: its host still has it.
    """
    forget = f"juju run {settings.unit} gpu-uncordon gpu={gpu.uuid}"
    if look.is_withdrawn(gpu):
        return INVENTORY.result(
            Outcome.WARNING,
            f"GPU {gpu.index} ({gpu.model} at {gpu.pci_address}) is no longer passed into this "
            "container",
            gpu=gpu.uuid,
            remedy=f"{pass_in(look.machine.instance, gpu.pci_address)} on its host; if it was "
            f"removed for good: {forget}",
        )
    seen = "does not answer" if gpu.pci_address in look.inventory.lost else "is gone"
    text = f"lost: GPU {gpu.index} ({gpu.model} at {gpu.pci_address}) {seen}"
    instead = [one.uuid for one in look.inventory.gpus if one.pci_address == gpu.pci_address]
    if instead and instead[0] not in {one.uuid for one in look.known}:
        text += f"; {instead[0]} is in its place"
    return INVENTORY.result(
        Outcome.FAILED if gpu.allowed else Outcome.WARNING,
        text,
        gpu=gpu.uuid,
        remedy="sudo dmesg | grep -e 'fallen off the bus' -e Xid; reboot, or power off and reseat "
        f"the card. If it was removed: {forget}",
    )


def _facts(settings: Settings, look: Look) -> Facts:
    return Facts(
        inventory=look.inventory,
        driver=look.driver,
        toolkit=look.machine.toolkit,
        options=Options(
            gpu_vendor=settings.vendor,
            gpu_driver=settings.gpu_driver,
            may_reboot=settings.auto_reboot,
            toolkit_version="",
            allow_vulnerable_toolkit=settings.allow_vulnerable_toolkit,
        ),
        unit=settings.unit,
    )


def _driver(settings: Settings, look: Look) -> Result:
    inventory = look.inventory
    if look.all_lost:
        return DRIVER.result(Outcome.NOT_RUN, "inventory failed")
    obstacle = host_states.of_gpus(_facts(settings, look))
    if obstacle is None:
        version = inventory.driver or "the kernel's own"
        text = f"{registry.find(inventory.vendor).display} driver {version}"
        text += f", CUDA {inventory.cuda}" if inventory.cuda else ""
        return DRIVER.result(Outcome.PASSED, text, value=version)
    short, what = inventory.state.value, obstacle.what
    text = what if what.startswith(f"{short}:") else f"{short}: {what}"
    return DRIVER.result(Outcome.FAILED, text, remedy=obstacle.remedy)


def _driver_version(settings: Settings, look: Look, not_run: str) -> Result:
    wanted, found = settings.min_driver_version, look.inventory.driver
    if not wanted:
        return DRIVER_VERSION.result(Outcome.SKIPPED, "minimums has no driver")
    if not_run:
        return DRIVER_VERSION.result(Outcome.NOT_RUN, not_run)
    if not found:
        return DRIVER_VERSION.result(Outcome.SKIPPED, "this driver has no version number")
    threshold = f"at least {wanted}"
    if versions.numbers(found) >= versions.numbers(wanted):
        return DRIVER_VERSION.result(Outcome.PASSED, found, value=found, threshold=threshold)
    newer = registry.find(look.inventory.vendor).newer_driver
    install = f" ({newer.format(branch=versions.numbers(wanted)[0])})" if newer else ""
    return DRIVER_VERSION.result(
        Outcome.FAILED,
        f"driver too old: {found} is below the minimum, {wanted}",
        value=found,
        threshold=threshold,
        remedy=f"install a newer driver{install} and reboot, or "
        f"juju config {settings.application} {settings.minimums('driver', '')}",
    )


def _cuda_toolkit(root: pathlib.Path) -> Result:
    """Return which CUDA toolkits the machine has; having none is not a fault."""
    homes = {path.resolve() for pattern in _CUDA_HOMES for path in sorted(root.glob(pattern))}
    found = {
        match.group(1): f"/{home.relative_to(root.resolve())}"
        for home in sorted(homes)
        for name, pattern in _CUDA_VERSIONS
        if (match := re.search(pattern, kernel.text(home / name), re.MULTILINE))
    }
    if not found:
        return CUDA_TOOLKIT.result(
            Outcome.SKIPPED, "no CUDA toolkit on the machine; images have their own"
        )
    text = ", ".join(f"CUDA {version} in {home}" for version, home in found.items())
    return CUDA_TOOLKIT.result(Outcome.PASSED, text, value=", ".join(found))


def _toolkit(settings: Settings, look: Look) -> Result:
    toolkit = look.machine.toolkit
    vendor = settings.gpus[0].vendor if settings.gpus else look.inventory.vendor
    if not registry.find(vendor).grant.by_runtime:
        return TOOLKIT.result(Outcome.SKIPPED, "only NVIDIA's GPUs need it")
    if look.unknown:
        return TOOLKIT.result(Outcome.NOT_RUN, look.unknown)
    threshold = f"at least {toolkit_policy.SAFE}"
    # The requirement of our GPUs, whatever else is found now.
    inventory = dataclasses.replace(look.inventory, vendor=vendor)
    seen = dataclasses.replace(_facts(settings, look), inventory=inventory)
    obstacle = host_states.of_toolkit(seen)
    version = toolkit.version if toolkit else ""
    known = toolkit_policy.advisories(version)
    has = ", ".join(f"{one.cve} (CVSS {one.severity})" for one in known)
    if obstacle is None and not known:
        return TOOLKIT.result(Outcome.PASSED, version, value=version, threshold=threshold)
    if obstacle is None:
        return TOOLKIT.result(
            Outcome.WARNING,
            f"toolkit vulnerable, and allowed: {version} has {has}",
            value=version,
            threshold=threshold,
            remedy=f"juju config {settings.application} allow-vulnerable-toolkit=false",
        )
    text = {
        "toolkit-vulnerable": f"toolkit vulnerable: {version} has {has}",
        "toolkit-version-unreadable": f"toolkit's version unknown: {obstacle.what}",
    }.get(obstacle.code, f"{obstacle.code.replace('-', ' ')}: {obstacle.what}")
    return TOOLKIT.result(
        Outcome.FAILED,
        text,
        value=toolkit and version,
        threshold=threshold,
        remedy=obstacle.remedy,
    )


def _files(settings: Settings, look: Look, not_run: str) -> list[Result]:
    checks = (wrapper_checks.RUNTIME, wrapper_checks.CONFIGURATION)
    if not settings.files:
        why = not_run or "the GPU runtime is not installed yet; see juju status"
        return [check.result(Outcome.NOT_RUN, why) for check in checks]
    if wrapper_checks.is_configured(settings):
        configuration = wrapper_checks.check_configuration(settings, look.root)
    else:
        configuration = checks[1].result(Outcome.SKIPPED, "only NVIDIA's GPUs need it")
    return [wrapper_checks.check_runtime(settings, look.root), configuration]
