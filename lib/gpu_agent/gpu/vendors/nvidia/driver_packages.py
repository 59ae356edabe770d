# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Select the distribution's packages of NVIDIA's driver, in versions that fit together.

Names are Ubuntu's. A branch is such as `580-server-open`. Open modules differ from closed ones
only in their own packages; libraries and tools are those of `580-server`.
"""

import collections.abc
import dataclasses
import re
import typing

from gpu_agent.model.host import Driver
from machine import apt, packages, process

OWNER: typing.Final = "driver"

_UBUNTU_DRIVERS: typing.Final = "/usr/bin/ubuntu-drivers"
# In seconds; the program opens apt's cache, which takes some.
_ANSWER: typing.Final = 120.0
_LIBRARIES: typing.Final = r"(?P<branch>[0-9]{3,4}(?:-server)?)"
_BRANCH: typing.Final = r"(?P<branch>[0-9]{3,4}(?:-server)?(?:-open)?)"
# Package names that contain a branch with its kind of modules.
_KIND: typing.Final = (
    re.compile(rf"nvidia-(?:headless-no-dkms|headless|driver|dkms|kernel-source)-{_BRANCH}"),
    # A kernel's release, or a flavour such as generic or oem-24.04.
    re.compile(rf"linux-modules-nvidia-{_BRANCH}-(?:[a-z].*|[0-9]+\..*)"),
)
# Packages that all kinds of modules of a branch share, and NVIDIA's own packages, which may have
# no branch in their names. The first one that is installed has the driver's version.
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
# Dependencies of a driver or its libraries in their own version, which apt selects only if that is
# the newest (Depends of nvidia-graphics-drivers-580-server in Ubuntu 24.04).
_COMPANIONS: typing.Final = (
    *("libnvidia-cfg1", "libnvidia-compute", "libnvidia-gpucomp", "nvidia-compute-utils"),
    *("nvidia-firmware", "nvidia-kernel-common"),
)
_LIBRARY_COMPANIONS: typing.Final = ("libnvidia-gpucomp",)


class DriverError(packages.PackageError):
    """NVIDIA's driver can't be installed as planned; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Installed:
    """The installed packages of NVIDIA's driver, no matter who installed them.

    Attributes:
        versions: versions of the packages that show the branch or the driver's version, by name.
        branch: such as `580-server-open`; empty: no packages.
        version: the driver's version, such as `580.65.06`; empty: unknown.
    """

    versions: dict[str, str]
    branch: str = ""
    version: str = ""


def look() -> Installed:
    """Return dpkg's state of them.

    Raises:
        machine.packages.PackageError: dpkg fails.
    """
    versions = packages.installed(*_GLOBS)
    name, shared = _first_shared(versions)
    version = upstream(versions[name]) if name else ""
    kinds = [found for found in map(_kind, sorted(versions)) if found]
    fitting = [branch for branch in kinds if libraries(branch) == shared]
    branch = max(fitting or ([] if shared else kinds), key=len, default=shared)
    return Installed(versions, branch or version.partition(".")[0], version)


def libraries(branch: str) -> str:
    """Return the branch of libraries and tools that belong to a branch's modules."""
    return branch.removesuffix("-open")


def upstream(version: str) -> str:
    """Return NVIDIA's version in a package's, such as `580.65.06` in `580.65.06-0ubuntu1`."""
    match = re.match(r"(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)+)", version)
    return match.group(1) if match else ""


def modules(branch: str, kernel: str) -> str:
    """Return the name of the package with the signed, prebuilt modules for one kernel."""
    return f"linux-modules-nvidia-{branch}-{kernel}"


def recommended(branch: str) -> tuple[str, str]:
    """Return the branch to install on this machine.

    Args:
        branch: the operator's choice; empty: the branch that ubuntu-drivers recommends, a server
            branch if there is one.

    Returns:
        That branch, and the package that installs its modules for each new kernel, or nothing.

    Raises:
        DriverError: there is none, or the chosen one is not available.
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
                f"{branch} is not an NVIDIA driver in this machine's archives for its GPUs: "
                f"they have {named}; with gpu-driver=auto the charm takes the recommended one"
            )
        return chosen[0]
    return next((row for row in found if "-server" in row[0]), found[0])


def chosen(
    branch: str, metapackage: str, kernels: tuple[str, ...], *, fabric_manager: bool
) -> dict[str, str]:
    """Return names and versions of all packages to install: the newest for these kernels.

    Args:
        branch: of the driver.
        metapackage: the package that installs modules for each new kernel, or an empty text.
        kernels: the running one first; only that one must have modules in the archive.
        fabric_manager: whether the GPUs need it, in exactly the driver's version.

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
    """Return packages for each version in which all needed ones exist, newest first."""
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
        # A metapackage of another version would install another kernel.
        if metapackage and exact in offered[metapackage]:
            wanted[metapackage] = exact
        yield wanted


def userspace(version: str) -> dict[str, str]:
    """Return names and versions of libraries and tools for exactly a version of the driver.

    Raises:
        DriverError: the archives no longer have them.
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
        f"(they have {have}): let LXD bind the host's, 'lxc config device set INSTANCE DEVICE "
        "id=nvidia.com/gpu=0', or install one of those versions on the host"
    )


def missing(found: Driver, *, fabric_manager: bool) -> dict[str, str]:
    """Return names and versions of what our driver lacks, except modules; see module_sets.

    Raises:
        DriverError: the archives no longer have them.
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
    """Return packages that give one more kernel its module without another driver version.

    Raises:
        machine.packages.PackageError: apt fails.
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
    """Return the package that has the driver's version, and the branch of libraries in it."""
    for pattern in _SHARED:
        found = [match for match in map(pattern.fullmatch, sorted(versions)) if match]
        # An old branch's name may stand for a newer one: 565-server installs 580-server.
        found.sort(key=lambda match: not _is_itself(match, versions))
        if found:
            return found[0].group(), libraries(found[0].group("branch") or "")
    return "", ""


def _is_itself(match: re.Match[str], versions: dict[str, str]) -> bool:
    major = (match.group("branch") or "").partition("-")[0]
    return upstream(versions[match.group()]).partition(".")[0] == major


def _kind(name: str) -> str:
    """Return the branch in the name of a package for one kind of modules; or empty."""
    matches = (pattern.fullmatch(name) for pattern in _KIND)
    return next((match.group("branch") for match in matches if match), "")


def _listed(*options: str) -> list[tuple[str, str]]:
    """Return ubuntu-drivers' list, best first: each branch, with the package of its modules.

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
        if options and not error.starved:  # older versions do not have the option
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
    # Branches without compiled modules come last.
    return sorted(found, key=lambda row: not row[1])


def _no_answer(error: process.CommandError) -> DriverError:
    return DriverError(
        f"ubuntu-drivers can't tell which NVIDIA driver fits: {error}: run 'sudo ubuntu-drivers "
        "list --gpgpu', or install a driver by hand",
        passes=error.starved,
    )


def _of(versions: collections.abc.Sequence[str], wanted: str) -> str:
    """Return the newest package version of one NVIDIA version; empty if there is none."""
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
    """Return the first set that apt can install: older kernels' modules need older drivers."""
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
