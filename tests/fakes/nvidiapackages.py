# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages for simulated GPUs: NVIDIA's driver as Ubuntu packs it, and its container toolkit.

Names, versions and dependencies are those of the real packages; what is in them stands in for the
silicon, and says so.
"""

import dataclasses
import pathlib
import platform
from collections.abc import Sequence

from tests import fakes

BRANCH = "580-server"
# In the order of their age: the first of CUDA 13.0, and a later one of the same branch.
DRIVERS = ("580.65.06", "580.95.05")
# The newest with known holes, the first without, and the newest known good.
TOOLKITS = ("1.17.8-1", "1.19.1-1", "1.20.0-1")
# Of Ubuntu 24.04's packages of the driver.
UBUNTU = "0ubuntu0.24.04.1"

Files = dict[str, bytes | pathlib.Path]

# modprobe runs this in place of the kernel's loading, which no machine of the lab could do.
MODPROBE = """\
# Stands in for the kernel: these machines have no NVIDIA card, and can load no module.
""" + "".join(
    f"install {name} {fakes.FAKEGPU} load {name}\nremove {name} {fakes.FAKEGPU} unload {name}\n"
    for name in fakes.MODULES
)
SMI = """\
#!/bin/sh
# Stands in for nvidia-smi: it lists the simulated cards, and resets one.
[ "$1" != --gpu-reset ] || exec /usr/local/lib/fake-gpu/fakegpu reset "$3"
echo "NVIDIA-SMI {version} (stand-in)"
exec cat /proc/driver/nvidia/gpus/*/information
"""
PERSISTENCED = """\
#!/bin/sh
# Stands in for nvidia-persistenced: simulated cards need nobody to keep them awake.
exec sleep infinity
"""
PERSISTENCED_UNIT = """\
[Unit]
Description=NVIDIA Persistence Daemon (stand-in)

[Service]
ExecStart=/usr/bin/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
UBUNTU_DRIVERS = f"""\
#!/bin/sh
# Stands in for ubuntu-drivers: the real one needs an Ubuntu, and knows no simulated card.
case "$*" in
*--gpgpu*)
    modules=linux-modules-nvidia-{BRANCH}-generic
    echo "nvidia-driver-{BRANCH}, (kernel modules provided by $modules)" ;;
*) echo "ubuntu-drivers (stand-in): only list --gpgpu is known" >&2; exit 2 ;;
esac
"""
DEPMOD = dict.fromkeys(
    ("postinst", "postrm"), f"#!/bin/sh\nexec /sbin/depmod {platform.release()}\n"
)
LDCONFIG = dict.fromkeys(("postinst", "postrm"), "#!/bin/sh\nexec /sbin/ldconfig\n")


@dataclasses.dataclass(frozen=True)
class Package:
    """What a package is made from: see `aptrepo.package`."""

    name: str
    version: str
    depends: str = ""
    files: Files = dataclasses.field(default_factory=dict)
    scripts: dict[str, str] = dataclasses.field(default_factory=dict)


def driver(version: str, built: pathlib.Path, library: str = "") -> list[Package]:
    """The packages of one driver: its libraries, programs, and modules for this kernel.

    Args:
        version: one of DRIVERS, or a later one.
        built: where its files are made.
        library: the version that its libraries are of; empty: the same, as it has to be.
    """
    packed = f"{version}-{UBUNTU}"
    compute, common = f"libnvidia-compute-{BRANCH}", f"nvidia-kernel-common-{BRANCH}"
    utils = f"nvidia-compute-utils-{BRANCH}"
    persistence = {
        "/usr/bin/nvidia-persistenced": PERSISTENCED.encode(),
        "/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED_UNIT.encode(),
    }
    smi = {"/usr/bin/nvidia-smi": SMI.format(version=version).encode()}
    return [
        Package(compute, packed, "", libraries(version, built, library), LDCONFIG),
        Package(common, packed, "", {"/lib/modprobe.d/nvidia-stand-in.conf": MODPROBE.encode()}),
        Package(utils, packed, f"{compute} (= {packed})", persistence),
        Package(f"nvidia-utils-{BRANCH}", packed, f"{compute} (= {packed})", smi),
        Package(
            f"nvidia-headless-no-dkms-{BRANCH}", packed,
            ", ".join(f"{name} (= {packed})" for name in (compute, common, utils)),
        ),
        *modules(version, built),
    ]  # fmt: skip


def libraries(version: str, built: pathlib.Path, of: str = "") -> Files:
    """The driver's libraries, named as its package has them; ldconfig makes their links."""
    folder = f"/usr/lib/{platform.machine()}-linux-gnu"
    made = fakes.build_nvml(built, of or version)
    return {
        f"{folder}/{name.removesuffix('.1')}.{version}": made / name for name in fakes.LIBRARIES
    }


def modules(version: str, built: pathlib.Path) -> list[Package]:
    """The prebuilt modules for the running kernel, and the package that follows the newest one.

    Ubuntu numbers these after the kernel, and ties them to the driver by what they depend on.
    """
    kernel = platform.release()
    exact = f"linux-modules-nvidia-{BRANCH}-{kernel}"
    # A driver's later versions come for the same kernel.
    again = "" if version == DRIVERS[0] else f"+{version}"
    packed = f"{kernel.partition('-')[0]}-1{again}"
    common = f"nvidia-kernel-common-{BRANCH}"
    of_driver = f"{common} (<= {version}-1), {common} (>= {version})"
    folder = f"/lib/modules/{kernel}/kernel/nvidia-{BRANCH.replace('-server', 'srv')}"
    files: Files = {
        f"{folder}/{name}.ko": fakes.build_module(built / f"{name}.ko", version)
        for name in (m.replace("_", "-") for m in fakes.MODULES)
    }
    return [
        Package(exact, packed, of_driver, files, DEPMOD),
        Package(
            f"linux-modules-nvidia-{BRANCH}-generic", packed, f"{exact} (= {packed}), {of_driver}"
        ),
    ]


def ubuntu_drivers() -> Package:
    """What recommends a driver."""
    files: Files = {"/usr/bin/ubuntu-drivers": UBUNTU_DRIVERS.encode()}
    return Package("ubuntu-drivers-common", "1:0.10.10", files=files)


def toolkit(version: str, runtime: Sequence[pathlib.Path] = ()) -> list[Package]:
    """NVIDIA's four packages of one version; the runtime is in the base.

    Args:
        version: one of TOOLKITS.
        runtime: the files of the real one, which the newest packages then hold.
    """
    base = "nvidia-container-toolkit-base"
    tools, library = "libnvidia-container-tools", "libnvidia-container1"
    if runtime and version == TOOLKITS[-1]:
        files: Files = {f"/usr/bin/{path.name}": path for path in runtime}
    else:
        text = fakes.STANDIN_RUNTIME.read_text()
        upstream = version.partition("-")[0]
        there = text.replace('VERSION = "1.20.0"', f'VERSION = "{upstream}"').encode()
        files = {f"/usr/bin/{fakes.STANDIN_RUNTIME.name.removesuffix('-standin')}": there}
    return [
        Package(library, version),
        Package(tools, version, f"{library} (>= {version})"),
        Package(base, version, files=files),
        Package(
            "nvidia-container-toolkit", version, f"{base} (= {version}), {tools} (= {version})"
        ),
    ]
