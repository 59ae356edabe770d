# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine whose archive has NVIDIA's driver, and a stand-in for the kernel's part in it.

apt, dpkg, systemd and modprobe are the real ones. A line of the driver's package in modprobe.d has
modprobe call a script instead of the kernel, which would take no module of these.
"""

import pathlib
import platform
import tempfile

from tests.fakes import aptrepo, kernelmodule
from tests.functional.apt_machine import ALONE
from tests.functional.forked_calls import Calls
from tests.lab.machines import Machine

ROOT = pathlib.Path(__file__).parents[2]
KERNEL = platform.release()
NEXT = "999.0.0-1-generic"  # newer than any that runs
OLD, NEW = "580.65.06", "580.95.05"
UBUNTU = "0ubuntu0.24.04.1"
BRANCHES = ("580-server", "580-server-open", "535-server")
DRIVERS = {
    OLD: ("580-server", "580-server-open"),
    NEW: ("580-server",),
    "535.1.2": ("535-server",),
}
# Ubuntu numbers modules after the kernel and the turn.
BUILT = {OLD: "6.8.0-60.63", NEW: "6.8.0-60.63+1", "535.1.2": "6.8.0-60.63"}
LIBRARIES = f"/usr/lib/{platform.machine()}-linux-gnu"

KERNELS_PART = r"""#!/bin/sh
# Stands in for the kernel: it can load no module of these packages. $1 is load or unload.
set -eu
module=/sys/module/$2
count() { echo $(($(cat /sys/module/nvidia/refcnt) + $1)) >/sys/module/nvidia/refcnt; }
if [ "$1" = unload ]; then
    [ ! -e /srv/busy ] && [ "$(cat "$module/refcnt")" = 0 ] || {
        echo "modprobe: FATAL: Module $2 is in use." >&2; exit 1; }
    rm -r "$module"
    [ "$2" = nvidia ] || [ "$2" = nouveau ] || {
        rmdir "/sys/module/nvidia/holders/$2"; count -1; }
    exit 0
fi
if [ -e /srv/refuses ]; then cat /srv/refuses >&2; exit 1; fi
file=$(find "/lib/modules/$(uname -r)" -name nvidia.ko | head -n1)
[ "$2" = nvidia ] || /usr/sbin/modprobe nvidia
mkdir -p "$module/holders"
tr '\0' '\n' <"$file" | sed -n 's/^version=//p' >"$module/version"
echo 0 >"$module/refcnt"
[ "$2" = nvidia ] || { mkdir "/sys/module/nvidia/holders/$2"; count 1; }
"""
MODPROBE = "".join(
    f"install {name} /usr/lib/kernels-part load {name}\n"
    f"remove {name} /usr/lib/kernels-part unload {name}\n"
    for name in ("nvidia", "nvidia_uvm", "nouveau")
)
UBUNTU_DRIVERS = """#!/bin/sh
# Stands in for ubuntu-drivers, which needs an Ubuntu and a card: it says what the test wrote.
case "$*" in
"list --gpgpu --recommended") exec cat /srv/recommended ;;
"list --gpgpu") exec cat /srv/listed ;;
*) exit 2 ;;
esac
"""
SERVICE = """[Unit]
Description=A stand-in for {name}
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
RECOMMENDED = f"nvidia-driver-{BRANCHES[0]} linux-modules-nvidia-{BRANCHES[0]}-generic\n"
LISTED = "".join(
    f"nvidia-driver-{branch}, (kernel modules provided by linux-modules-nvidia-{branch}-generic)\n"
    for branch in ("590", *BRANCHES)
)
# A bare machine: nothing of NVIDIA's, and nspawn's own trace hidden.
SETUP = f"""
set -eu
{ALONE}
rm -f /run/systemd/container
mount -o remount,bind,rw /sys; mkdir -p /sys/module
grep -q ' /sys/module ' /proc/mounts || mount -t tmpfs tmpfs /sys/module
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/test
mv /etc/apt/sources.list.d /etc/apt/sources.list.d.off; mkdir /etc/apt/sources.list.d
: >/etc/apt/sources.list
"""
ARCHIVE = """
echo 'deb [signed-by=/srv/archive/key.asc] file:/srv/archive/{name} /' >/etc/apt/sources.list
apt-get -qq update
"""
CLEAN = """
set -u
there=$(dpkg-query -W -f '${Package} ' '*nvidia*' ubuntu-drivers-common 2>/dev/null)
if [ "$there" ]; then
    apt-mark unhold $there
    dpkg --purge --force-all $there
fi >/dev/null 2>&1
rm -rf /var/lib/gpu-ci /sys/module/* /srv/busy /srv/refuses /run/systemd/container \
    /etc/modprobe.d/gpu-ci* /boot/* /lib/modules/*/kernel/nvidia-* /srv/driver
"""
# One Python makes all calls, each of a test's lists in a child of its own.
CALLS = """
import dataclasses
from gpu_agent.gpu.vendors.nvidia import driver_state
from host import nvidia_driver as driver
from host.nvidia_driver_reload import Reload
from machine import packages, process
from plan.model import DriverPlan
from tests.functional.forked_calls import serve
commands, said, run = [], [], process.run
process.run = lambda argv, **more: commands.append(argv) or run(argv, **more)
CALLS = {
    "ensure": lambda **more: driver.ensure(DriverPlan(**more), said.append),
    "have": lambda **more: packages.ensure("driver", more, said.append),
    "reload": lambda: Reload().run(said.append),
    "end_reload": Reload().end,
    "look": lambda: dataclasses.asdict(driver_state.look()),
    "release": driver.release,
    "remove": packages.remove_installed,
    "owned": lambda: packages.owned("driver"),
}
def answer(steps):
    answers = []
    for name, more in steps:
        try:
            answers.append(CALLS[name](**more))
        except packages.PackageError as error:
            answers.append(("passes: " if error.passes else "error: ") + str(error))
    return [answers, said, len(commands)]
serve(answer)
"""


class DriverMachine:
    """The machine, and the calls of the driver's room in it."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.said: list[str] = []
        self.commands = 0
        self._archive = ""
        path = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"
        self._calls = Calls(machine, path, "-c", CALLS)
        self.sh(SETUP)

    def close(self) -> None:
        """End what makes the calls."""
        self._calls.close()

    def sh(self, script: str) -> str:
        """What a script says."""
        return self.machine.enter("/bin/sh", stdin=script, timeout=180).stdout

    def calls(self, *steps: tuple[str, dict]) -> list:
        """What the calls answer, one after the other; errors as text."""
        answers, self.said, self.commands = self._calls.ask(steps)
        return answers

    def call(self, name: str, **more: object):
        """What one call answers."""
        return self.calls((name, more))[0]

    def archive(self, name: str) -> None:
        """Have this one as the only archive: `old`, `all`, `none`."""
        if name != self._archive:
            self.sh(ARCHIVE.format(name=name))
            self._archive = name

    def have(self) -> dict[str, str]:
        """The packages of NVIDIA's that are wholly there, with versions."""
        form = "${Package} ${Version} ${db:Status-Status}\n"
        shown = self.sh(f"dpkg-query -W -f '{form}' '*nvidia*' || :")
        rows = [line.split(" ") for line in shown.splitlines()]
        return {name: version for name, version, status in rows if status == "installed"}

    def held(self) -> set[str]:
        """The packages that are held."""
        return set(self.sh("apt-mark showhold").split())


def archives(folder: pathlib.Path) -> None:
    """Make them: `old` has one version of each, `all` both, `none` only ubuntu-drivers."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="gpuci-key-") as home:
        key = aptrepo.Key.make(pathlib.Path(home, "key"))
        (folder / "key.asc").write_text(key.public)
        for name, versions in (("none", ()), ("old", (OLD, "535.1.2")), ("all", tuple(DRIVERS))):
            made = folder / name
            aptrepo.package(
                made, "ubuntu-drivers-common", "1:0.10",
                files={"/usr/bin/ubuntu-drivers": UBUNTU_DRIVERS},
            )  # fmt: skip
            for version in versions:
                _driver(made, version)
            aptrepo.publish(made, key)


def _driver(made: pathlib.Path, version: str) -> None:
    packed, major = f"{version}-{UBUNTU}", version.partition(".")[0]
    server = f"{major}-server"
    compute, common = f"libnvidia-compute-{server}", f"nvidia-kernel-common-{server}"
    library = f"{LIBRARIES}/libnvidia-ml.so"
    aptrepo.package(
        made, compute, packed, files={f"{library}.{version}": b"stand-in"},
        scripts={
            "postinst": f"ln -sf libnvidia-ml.so.{version} {library}.1",
            "postrm": f'[ "$1" != remove ] || rm -f {library}.1',
        },
        Provides="libnvidia-compute", Conflicts="libnvidia-compute",
    )  # fmt: skip
    files = {"/usr/lib/kernels-part": KERNELS_PART, "/usr/lib/modprobe.d/stand-in.conf": MODPROBE}
    aptrepo.package(
        made, common, packed, files=files,
        Provides="nvidia-kernel-common", Conflicts="nvidia-kernel-common",
    )  # fmt: skip
    aptrepo.package(made, f"nvidia-utils-{server}", packed, f"{compute} (= {packed})")
    for branch in DRIVERS[version]:
        aptrepo.package(
            made, f"nvidia-headless-no-dkms-{branch}", packed,
            f"{compute} (= {packed}), {common} (= {packed})",
        )  # fmt: skip
        _modules(made, version, branch, common)
    if version == OLD:
        unit = SERVICE.format(name="the fabric manager")
        aptrepo.package(
            made, f"nvidia-fabricmanager-{major}", packed,
            files={"/usr/lib/systemd/system/nvidia-fabricmanager.service": unit},
        )  # fmt: skip


def _modules(made: pathlib.Path, version: str, branch: str, common: str) -> None:
    of_driver = f"{common} (<= {version}-1), {common} (>= {version})"
    for kernel in (KERNEL, NEXT):
        folder = f"/usr/lib/modules/{kernel}/kernel/nvidia-{branch.replace('-server', 'srv')}"
        aptrepo.package(
            made, f"linux-modules-nvidia-{branch}-{kernel}", BUILT[version], of_driver,
            files={f"{folder}/nvidia.ko": kernelmodule.module(version)},
        )  # fmt: skip
    exact = f"linux-modules-nvidia-{branch}-{KERNEL}"
    aptrepo.package(
        made, f"linux-modules-nvidia-{branch}-generic", BUILT[version],
        f"{exact} (= {BUILT[version]}), {of_driver}",
    )  # fmt: skip
