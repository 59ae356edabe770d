# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One driver of NVIDIA's in place of another: what there is, what there could be, and the change.

Only drivers that this charm installed are replaced.
"""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent.gpu.vendors.nvidia import driver_packages
from gpu_agent.model.host import Driver
from gpu_runtime.open_devices import Search
from host.package_manager import Packages, Progress
from machine import apt, packages

Archives = collections.abc.Callable[..., collections.abc.Mapping[str, tuple[str, ...]]]

# The programs of the services that a reload of the modules stops and starts again
# (nvidia_driver_reload.SERVICES).
_STOPPED: typing.Final = frozenset({
    "nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "gpu-ci-health",
})  # fmt: skip
# Linux TASK_COMM_LEN, without the NUL.
_COMM_LENGTH: typing.Final = 15


@dataclasses.dataclass(frozen=True)
class Choice:
    """A driver as packages.

    Attributes:
        branch: such as `580-server`.
        version: the driver's, such as `580.95.05`.
        packages: their names and versions.
    """

    branch: str
    version: str
    packages: dict[str, str]

    def __str__(self) -> str:
        """As the operator reads it."""
        return f"{self.version} of {self.branch}"


def present(found: Driver) -> Choice:
    """The driver that is installed, with all that came for it.

    Raises:
        machine.packages.PackageError: dpkg can't tell.
    """
    return Choice(found.branch, found.version, packages.owned(driver_packages.OWNER))


def newest(branch: str, found: Driver) -> Choice:
    """The newest of a branch that this machine's archives have and that fits it.

    Args:
        branch: such as `595-server`.
        found: what there is of the driver now.

    Raises:
        machine.packages.PackageError: the archives can't be asked, or have none; then the text
            names the branches that they have.
    """
    packages.refresh()
    name, metapackage = driver_packages.recommended(branch)
    kernels = (found.kernel, found.next_kernel)
    chosen = driver_packages.chosen(name, metapackage, kernels, fabric_manager=found.nvswitch)
    tools = chosen[f"nvidia-utils-{driver_packages.libraries(name)}"]
    return Choice(name, driver_packages.upstream(tools), chosen)


def is_newer(one: Choice, other: Choice) -> bool:
    """Whether one driver has a higher version than another."""
    return _numbers(one.version) > _numbers(other.version)


def preview(
    choice: Choice, simulate: collections.abc.Callable[..., apt.Simulated] = apt.simulate
) -> str:
    """Return a text about what apt would do to install a driver.

    Args:
        choice: the driver.
        simulate: returns the effect of an installation.

    Raises:
        machine.packages.PackageError: it would fail.
    """
    seen = simulate(*(f"{name}={version}" for name, version in choice.packages.items()))
    kinds = (("changes", seen.changed), ("comes", seen.new), ("goes", seen.removed))
    return "; ".join(f"{what}: {', '.join(sorted(of))}" for what, of in kinds if of) or "nothing"


def lost(choice: Choice, archives: Archives = apt.available) -> str:
    """Return the first package of a driver that the archives no longer have; empty: they have all.

    Args:
        choice: the driver.
        archives: returns the versions of packages in the archives.

    Raises:
        machine.packages.PackageError: apt can't tell.
    """
    offered = archives(*choice.packages)
    missing = [name for name, version in choice.packages.items() if version not in offered[name]]
    return f"{missing[0]} {choice.packages[missing[0]]}" if missing else ""


def install(choice: Choice, other: Choice, progress: Progress, here: Packages = packages) -> bool:
    """Have a driver's packages in place of another's; nothing is loaded or unloaded.

    Killed at any point, it can be called again.

    Args:
        choice: the wanted driver.
        other: the previous driver; it is removed if its branch differs.
        progress: reports steps that take long.
        here: the machine's packages.

    Returns:
        Whether anything changed.

    Raises:
        machine.packages.PackageError: that can't be done; what apt has not done is as it was.
    """
    changed = here.ensure(driver_packages.OWNER, choice.packages, progress)
    if other.branch == choice.branch:
        return changed
    came = here.owned(driver_packages.OWNER)
    old = [name for name in other.packages if name in came and name not in choice.packages]
    if not old:
        return changed
    here.remove_installed(*old)
    # What others of the old driver needed is held again for the new one.
    here.ensure(driver_packages.OWNER, choice.packages, progress)
    return True


def users(root: pathlib.Path = pathlib.Path("/")) -> tuple[str, ...]:
    """Processes that have one of NVIDIA's device nodes open, such as `pid 4711 (python3)`.

    Services that a reload of the modules stops for a moment do not count.

    Raises:
        OSError: the packages' files cannot be read.
    """
    nodes = [*(root / "dev").glob("nvidia*"), *(root / "dev/nvidia-caps").glob("*")]
    search = Search(str(root).rstrip("/"), [f"/{node.relative_to(root)}" for node in nodes])
    found: list[str] = []
    for process in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        if not search.has_one_open(int(process.name)):
            continue
        name = _name(process)
        if name and name not in {one[:_COMM_LENGTH] for one in _STOPPED}:
            found.append(f"pid {process.name} ({name})")
    return tuple(found)


def _name(process: pathlib.Path) -> str:
    """What a process calls itself; empty for one that has ended."""
    try:
        name = (process / "comm").read_bytes().decode(errors="replace").removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:_COMM_LENGTH]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]
