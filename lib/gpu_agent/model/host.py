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
    """What there is of NVIDIA's driver: in the running kernel, on the disk, as packages.

    Attributes:
        container: this is a system container, whose kernel and modules are its host's.
        kernel: the running kernel's release, such as `6.8.0-60-generic`.
        next_kernel: that of the kernel which the next boot takes; empty if it can't be told.
        modules: which of these two have nvidia.ko on the disk, each with the module's version,
            which is empty if it can't be told.
        loaded: version of the loaded nvidia.ko, such as `580.65.06`; empty if none is.
        library: version of the libnvidia-ml.so.1 on the disk; empty if there is none, or it has
            no version in its name.
        branch: of which branch its packages are, such as `580-server-open`; empty: no packages.
        version: theirs, such as `580.65.06`; empty: no packages.
        ours: this charm installed them.
        bound: LXD has bound the host's libraries in.
        secure_boot: the firmware lets signed modules alone be loaded.
        refused: what modprobe said when it could not load the module in this boot; or empty.
        nvswitch: the GPUs are joined by NVSwitches, which need a fabric manager.
        changing: an upgrade of it has begun and not ended.
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
        """Whether there is anything of a driver that this charm did not bring."""
        # In a container the loaded module is the host's.
        loaded = self.loaded and not self.container
        packages = self.branch or self.version
        return not self.ours and bool(packages or self.library or self.modules or loaded)


@dataclasses.dataclass(frozen=True)
class Packaged:
    """NVIDIA's container toolkit as a package.

    Attributes:
        version: of nvidia-container-toolkit-base, such as `1.20.0-1`; empty: it is no package, or
            not there.
        ours: this charm installed it.
        previous: the version before, while this one is on trial; or empty.
        bad: versions that this charm went back from, since no container worked with them.
    """

    version: str = ""
    ours: bool = False
    previous: str = ""
    bad: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the machine itself says.

    Attributes:
        architecture: Debian's name of it: `amd64`, `arm64`.
        toolkit: the NVIDIA container runtime, if there is one.
        rival: who else owns containerd's socket, as a systemd unit or process name; or empty.
        foreign_runc: path of a runc that containerd would find before our wrapper; or empty.
        instance: its name on its host, where it is a system container; empty on a machine.
        boot: a digest of its kernel's boot id, the same in all containers of one host; or empty.
    """

    architecture: str
    toolkit: Toolkit | None = None
    rival: str = ""
    foreign_runc: str = ""
    instance: str = ""
    boot: str = ""
