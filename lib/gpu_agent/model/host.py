# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""This machine, and NVIDIA's driver and container toolkit on it: frozen types only."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """The nvidia-container-runtime of this machine: its absolute path and version."""

    path: str
    version: str


@dataclasses.dataclass(frozen=True)
class Driver:
    """NVIDIA's driver in the running kernel, on the disk and as packages.

    Attributes:
        container: this is a system container; kernel and modules belong to its host.
        kernel: release of the running kernel, such as `6.8.0-60-generic`.
        next_kernel: release of the kernel of the next boot; empty if unknown.
        modules: which of these two kernels have nvidia.ko on the disk, each with the module's
            version; the version is empty if unknown.
        loaded: version of the loaded nvidia.ko, such as `580.65.06`; empty if none is.
        library: version of the libnvidia-ml.so.1 on the disk; empty if there is none, or its name
            has no version.
        branch: branch of the packages, such as `580-server-open`; empty: no packages.
        version: version of the packages, such as `580.65.06`; empty: no packages.
        ours: this charm installed the packages.
        bound: LXD has mounted the host's libraries into this container.
        secure_boot: the firmware allows only signed modules.
        refused: modprobe's error if it could not load the module in this boot; or empty.
        nvswitch: NVSwitches connect the GPUs, so they need a fabric manager.
        changing: an upgrade has begun and not ended.
    """

    container: bool = False
    kernel: str = ""
    next_kernel: str = ""
    modules: tuple[tuple[str, str], ...] = ()
    loaded: str = ""
    library: str = ""
    branch: str = ""
    version: str = ""
    ours: bool = False
    bound: bool = False
    secure_boot: bool = False
    refused: str = ""
    nvswitch: bool = False
    changing: bool = False

    @property
    def is_anothers(self) -> bool:
        """Whether a driver is here that this charm did not install."""
        # In a container the loaded module is the host's.
        loaded = self.loaded and not self.container
        packages = self.branch or self.version
        return not self.ours and bool(packages or self.library or self.modules or loaded)


@dataclasses.dataclass(frozen=True)
class Packaged:
    """NVIDIA's container toolkit as a package.

    Attributes:
        version: version of nvidia-container-toolkit-base, such as `1.20.0-1`; empty: not installed
            as a package.
        ours: this charm installed it.
        previous: the previous version, while this one is on trial; or empty.
        bad: versions that this charm rolled back, since no container started with them.
    """

    version: str = ""
    ours: bool = False
    previous: str = ""
    bad: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        architecture: Debian's name of it: `amd64`, `arm64`.
        toolkit: the NVIDIA container runtime, if there is one.
        instance: its name on its host if it is a system container; otherwise empty.
        boot: a digest of its kernel's boot id, the same in all containers of one host; or empty.
    """

    architecture: str
    toolkit: Toolkit | None = None
    instance: str = ""
    boot: str = ""
