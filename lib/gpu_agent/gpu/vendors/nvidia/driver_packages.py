# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which packages of the distribution make up NVIDIA's driver, and which of them fit together.

Names are Ubuntu's. A branch is such as `580-server-open`: the open modules differ from the closed
ones in their own packages alone, libraries and tools are those of `580-server`.
"""

import collections.abc
import dataclasses
import re
import typing

from gpu_agent.model.host import Driver
from machine import apt, packages, process

OWNER: typing.Final = "driver"

_UBUNTU_DRIVERS: typing.Final = "/usr/bin/ubuntu-drivers"
# In seconds; it opens apt's cache, which takes some.
_ANSWER: typing.Final = 120.0
_LIBRARIES: typing.Final = r"(?P<branch>[0-9]{3,4}(?:-server)?)"
_BRANCH: typing.Final = r"(?P<branch>[0-9]{3,4}(?:-server)?(?:-open)?)"
# Names that tell a branch with its kind of modules.
_KIND: typing.Final = (
    re.compile(rf"nvidia-(?:headless-no-dkms|headless|driver|dkms|kernel-source)-{_BRANCH}"),
    # A kernel's release, or a flavour such as generic or oem-24.04.
    re.compile(rf"linux-modules-nvidia-{_BRANCH}-(?:[a-z].*|[0-9]+\..*)"),
)
# Names of what all kinds of modules of a branch share, and of NVIDIA's own packages, which may
# have no branch in their names. The first that is there has the driver's version.
_SHARED: typing.Final = (
    re.compile(rf"libnvidia-compute(?:-{_LIBRARIES})?"),
    re.compile(rf"nvidia-utils-{_LIBRARIES}"),
    re.compile(rf"nvidia-kernel-common-{_LIBRARIES}"),
    _KIND[0],
    re.compile(r"(?P<branch>)(?:nvidia-(?:driver|open)|libnvidia-ml1)"),
)
_GLOBS: typing.Final = (
    "libnvidia-compute*",
    "libnvidia-ml1",
    "linux-modules-nvidia-*",
    "nvidia-dkms-*",
    "nvidia-driver*",
    "nvidia-headless-*",
    "nvidia-kernel-*",
    "nvidia-open",
    "nvidia-utils-*",
)
# What a driver or its libraries need at their own version, which apt takes of itself only where
# that is the newest (Depends of nvidia-graphics-drivers-580-server in Ubuntu 24.04).
_COMPANIONS: typing.Final = (
    *("libnvidia-cfg1", "libnvidia-compute", "libnvidia-gpucomp", "nvidia-compute-utils"),
    *("nvidia-firmware", "nvidia-kernel-common"),
)
_LIBRARY_COMPANIONS: typing.Final = ("libnvidia-gpucomp",)


class DriverError(packages.PackageError):
    """NVIDIA's driver can't be had as planned: one sentence that says why, with the next step."""


@dataclasses.dataclass(frozen=True)
class Installed:
    """The packages of NVIDIA's driver that are installed, whoever brought them.

    Attributes:
        versions: of those that tell a branch or the driver's version, by name.
        branch: such as `580-server-open`; empty: there are none.
        version: the driver's, such as `580.65.06`; empty where none of them tells it.
    """

    versions: dict[str, str]
    branch: str = ""
    version: str = ""


def look() -> Installed:
    """What dpkg has of them.

    Raises:
        machine.packages.PackageError: it can't tell.
    """
    versions = packages.installed(*_GLOBS)
    name, shared = _first_shared(versions)
    version = upstream(versions[name]) if name else ""
    kinds = [found for found in map(_kind, sorted(versions)) if found]
    fitting = [branch for branch in kinds if libraries(branch) == shared]
    branch = max(fitting or ([] if shared else kinds), key=len, default=shared)
    return Installed(versions, branch or version.partition(".")[0], version)


def libraries(branch: str) -> str:
    """The branch of libraries and tools that a branch's modules go with."""
    return branch.removesuffix("-open")


def upstream(version: str) -> str:
    """NVIDIA's version in that of a package, such as `580.65.06` in `580.65.06-0ubuntu1`."""
    match = re.match(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)+)", version)
    return match.group(1) if match else ""


def modules(branch: str, kernel: str) -> str:
    """Name of the package that has the modules which are built and signed for one kernel."""
    return f"linux-modules-nvidia-{branch}-{kernel}"


def recommended(branch: str) -> tuple[str, str]:
    """The branch to install on this machine.

    Args:
        branch: the operator's choice; empty: the one that ubuntu-drivers recommends, of those for
            servers if it has one.

    Returns:
        That branch, and the package that brings its modules with each new kernel, or nothing.

    Raises:
        DriverError: there is none, or the chosen one is not among them.
        machine.packages.PackageError: ubuntu-drivers can't be installed.
    """
    if not packages.ensure_installed("ubuntu-drivers-common"):
        packages.refresh()
    found = [] if branch else _listed("--recommended")
    found = found or _listed()
    named = ", ".join(dict.fromkeys(name for name, _ in found))
    if not found:
        raise DriverError(
            "this machine's archives have no NVIDIA driver for its GPUs: see 'ubuntu-drivers list "
            "--gpgpu', enable Ubuntu's restricted component, or install a driver by hand"
        )
    if branch:
        chosen = [row for row in found if row[0] == branch]
        if not chosen:
            raise DriverError(
                f"{branch} is no NVIDIA driver that this machine's archives have for its GPUs: "
                f"they have {named}; with gpu-driver=auto the charm takes the recommended one"
            )
        return chosen[0]
    return next((row for row in found if "-server" in row[0]), found[0])


def chosen(
    branch: str, metapackage: str, kernels: tuple[str, ...], *, fabric_manager: bool
) -> dict[str, str]:
    """Names and versions of all that is to be installed: the newest that fits these kernels.

    Args:
        branch: of the driver.
        metapackage: the one that brings modules with each new kernel, or an empty text.
        kernels: the running one first; one alone must have modules in the archive.
        fabric_manager: the GPUs need it, of exactly the driver's version.

    Raises:
        DriverError: the archives have nothing that fits.
    """
    headless, utils = f"nvidia-headless-no-dkms-{branch}", f"nvidia-utils-{libraries(branch)}"
    manager = f"nvidia-fabricmanager-{branch.partition('-')[0]}"
    beside = [f"{name}-{libraries(branch)}" for name in _COMPANIONS]
    beside.append(f"nvidia-kernel-source-{branch}")
    by_kernel = [modules(branch, kernel) for kernel in dict.fromkeys(kernels) if kernel]
    offered = apt.available(headless, utils, manager, metapackage or headless, *beside, *by_kernel)
    built = [name for name in by_kernel if offered[name]]
    if not built:
        raise DriverError(
            f"the archives have no module of NVIDIA's driver {branch} for kernel {kernels[0]}: "
            "boot a kernel that has one, see 'apt-cache search linux-modules-nvidia-"
            f"{branch}', or install a driver by hand"
        )
    drivers = _of_one_version(
        [headless, utils, *([manager] if fabric_manager else [])], beside, offered
    )
    # With modules for both kernels, if there is such a driver.
    sets = [
        {**of_driver, **of_modules}
        for several in dict.fromkeys((len(built), 1))
        for of_driver in drivers
        for of_modules in _modules_of(built[:several], metapackage, offered)
    ]
    return _first_that_fits(sets, branch)


def _of_one_version(
    needed: list[str], beside: list[str], offered: dict[str, tuple[str, ...]]
) -> list[dict[str, str]]:
    """Packages at each version in which all of the needed ones are there, newest first."""
    found = list[dict[str, str]]()
    for version in offered[needed[0]]:
        same = {name: _of(offered[name], upstream(version)) for name in (*needed, *beside)}
        if all(same[name] for name in needed):
            found.append({name: has for name, has in same.items() if has})
    if not found:
        raise DriverError(_lacking(needed[-1], needed[0], offered))
    return found


def _modules_of(
    built: list[str], metapackage: str, offered: dict[str, tuple[str, ...]]
) -> collections.abc.Iterator[dict[str, str]]:
    for exact in offered[built[0]]:
        wanted = {name: exact if exact in offered[name] else offered[name][0] for name in built}
        # One of another version would bring another kernel.
        if metapackage and exact in offered[metapackage]:
            wanted[metapackage] = exact
        yield wanted


def userspace(version: str) -> dict[str, str]:
    """Names and versions of the libraries and tools of exactly a version of the driver.

    Raises:
        DriverError: the archives have them no more.
    """
    major = version.partition(".")[0]
    branches = (f"{major}-server", major)
    kinds = ("libnvidia-compute", "nvidia-utils", *_LIBRARY_COMPANIONS)
    offered = apt.available(*(f"{kind}-{branch}" for kind in kinds for branch in branches))
    for branch in branches:
        found = {f"{kind}-{branch}": _of(offered[f"{kind}-{branch}"], version) for kind in kinds}
        if found[f"libnvidia-compute-{branch}"] and found[f"nvidia-utils-{branch}"]:
            return {name: has for name, has in found.items() if has}
    there = [v for branch in branches for v in offered[f"libnvidia-compute-{branch}"]]
    have = ", ".join(dict.fromkeys(map(upstream, there))) or f"none of {major}"
    raise DriverError(
        f"the archives have no NVIDIA libraries of version {version}, which the host's driver has "
        f"(they have {have}): have LXD bind the host's in, 'lxc config device set INSTANCE DEVICE "
        "id=nvidia.com/gpu=0', or install one of those versions on the host"
    )


def missing(found: Driver, *, fabric_manager: bool) -> dict[str, str]:
    """Names and versions of what our driver lacks, but for modules; see module_sets.

    Raises:
        DriverError: the archives have them no more.
    """
    names = [f"nvidia-headless-no-dkms-{found.branch}", f"nvidia-utils-{libraries(found.branch)}"]
    if fabric_manager:
        names.append(f"nvidia-fabricmanager-{found.branch.partition('-')[0]}")
    here = packages.installed(*names)
    lacking = [name for name in names if name not in here]
    offered = apt.available(*lacking) if lacking else {}
    wanted = {name: _of(offered[name], found.version) for name in lacking}
    for name, version in wanted.items():
        if not version:
            have = ", ".join(dict.fromkeys(map(upstream, offered[name])))
            raise DriverError(
                f"the archives have {name} {have or 'in no version'}, and the driver here is "
                f"{found.version}: run 'sudo apt-get update', or the action upgrade-driver"
            )
    return wanted


def module_sets(found: Driver, kernel: str) -> collections.abc.Iterator[dict[str, str]]:
    """What would give one more kernel its module and leave the driver's version alone.

    Raises:
        machine.packages.PackageError: apt can't tell.
    """
    name = modules(found.branch, kernel)
    there = dict(packages.owned(OWNER))
    for version in apt.available(name)[name]:
        wanted = {**there, name: version}
        try:
            simulated = apt.simulate(*_asked(wanted))
        except packages.PackageError as error:
            if error.passes:
                raise
            continue
        if not simulated.removed:
            yield wanted


def _first_shared(versions: dict[str, str]) -> tuple[str, str]:
    """Name of the package that has the driver's version, and the branch of libraries in it."""
    for pattern in _SHARED:
        found = [match for match in map(pattern.fullmatch, sorted(versions)) if match]
        # An old branch's name may stand for a newer one: 565-server brings 580-server.
        found.sort(key=lambda match: not _is_itself(match, versions))
        if found:
            return found[0].group(), libraries(found[0].group("branch") or "")
    return "", ""


def _is_itself(match: re.Match[str], versions: dict[str, str]) -> bool:
    major = (match.group("branch") or "").partition("-")[0]
    return upstream(versions[match.group()]).partition(".")[0] == major


def _kind(name: str) -> str:
    """The branch in the name of a package that goes with one kind of modules; or empty."""
    matches = (pattern.fullmatch(name) for pattern in _KIND)
    return next((match.group("branch") for match in matches if match), "")


def _listed(*options: str) -> list[tuple[str, str]]:
    """What ubuntu-drivers lists, best first: each branch, with the package of its modules.

    Lines of ubuntu-drivers-common 0.10 are `nvidia-driver-580-server-open, (kernel modules
    provided by linux-modules-nvidia-580-server-open-generic)`, or with --recommended these two
    names alone; those before 0.9.7 name nvidia-headless-no-dkms-580-server.
    """
    argv = [_UBUNTU_DRIVERS, "list", "--gpgpu", *options]
    try:
        done = process.run(argv, timeout=_ANSWER, check=False)
    except process.CommandError as error:
        raise _no_answer(error) from error
    if done.returncode:
        error = process.CommandError(argv, done.returncode, done.stderr or done.stdout)
        if options and not error.starved:  # older ones do not know it
            return []
        raise _no_answer(error)
    rows = re.finditer(
        rf"^nvidia-(?:driver|headless-no-dkms|headless)-{_BRANCH}(?:[ ,].*)?$",
        done.stdout,
        re.MULTILINE,
    )
    found = list[tuple[str, str]]()
    for row in rows:
        meta = re.search(r"linux-modules-nvidia-[^\s,()]+", row.group())
        found.append((row.group("branch"), meta.group() if meta else ""))
    # Those that would have to be compiled here come last.
    return sorted(found, key=lambda row: not row[1])


def _no_answer(error: process.CommandError) -> DriverError:
    return DriverError(
        f"ubuntu-drivers can't tell which NVIDIA driver fits: {error}: run 'sudo ubuntu-drivers "
        "list --gpgpu', or install a driver by hand",
        passes=error.starved,
    )


def _of(versions: collections.abc.Sequence[str], wanted: str) -> str:
    """The newest package version that is of one version of NVIDIA's; empty if there is none."""
    return next((version for version in versions if upstream(version) == wanted), "")


def _lacking(name: str, headless: str, offered: dict[str, tuple[str, ...]]) -> str:
    have, drivers = (", ".join(dict.fromkeys(map(upstream, offered[n]))) for n in (name, headless))
    return (
        f"the archives have {name} {have or 'in no version'} and the driver {drivers}, which must "
        "be the same: run 'sudo apt-get update', or set gpu-driver to another branch"
    )


def _asked(wanted: dict[str, str]) -> list[str]:
    return [f"{name}={version}" if version else name for name, version in wanted.items()]


def _first_that_fits(sets: list[dict[str, str]], branch: str) -> dict[str, str]:
    """The first of these that apt can install: modules of older kernels go with older drivers."""
    reasons = list[packages.PackageError]()
    for wanted in sets:
        try:
            apt.simulate(*_asked(wanted))
        except packages.PackageError as error:
            if error.passes:
                raise
            reasons.append(error)
        else:
            return wanted
    raise DriverError(f"NVIDIA's driver {branch} does not fit this machine: {reasons[0]}")
