# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with cards and nothing else: what it shows, what packages and modprobe make of it."""

import pathlib
import platform
import re
import tempfile

import pytest

from tests.fakes import nvidiapackages
from tests.lab import archive, outfit
from tests.lab.errors import CommandError
from tests.lab.juju.agent import SHARED
from tests.lab.park import Park

REPO = pathlib.Path(__file__).parents[2]
OLD, NEW = nvidiapackages.DRIVERS
DETECT = """
cd /srv/repo && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src:lib .venv/bin/python -c "
from gpu_agent.gpu.vendors import detect
found = detect.detect()
print(found.state.value, len(found.gpus), found.driver, found.detail, sep='|')"
"""
TOOLKIT = f"""
printf '%s\\n' 'Types: deb' 'URIs: {archive.MIRROR_URL}/stable/deb/{archive.architecture()}' \
    'Suites: /' 'Signed-By: /etc/apt/keyrings/nvidia.asc' >/etc/apt/sources.list.d/nvidia.sources
busybox wget -q -O /etc/apt/keyrings/nvidia.asc {archive.MIRROR_URL}/gpgkey
apt-get -qq update
"""
PURGE = """
modprobe -r nvidia_uvm 2>&- || :
modprobe -r nvidia 2>&- || :
apt-get -qq -y purge '*nvidia*' >/dev/null
rm -f /etc/apt/sources.list.d/nvidia.sources /etc/apt/keyrings/nvidia.asc
"""


class Metal:
    def __init__(self, machine):
        self.machine = machine

    def sh(self, script):
        return self.machine.run(["/bin/bash", "-e"], stdin=script).stdout

    def found(self):
        """What the charm finds: state, number of GPUs, driver, detail."""
        return self.sh(DETECT).strip().split("|")

    def install(self, *packages):
        apt = "apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends --allow-downgrades"
        self.sh(f"{apt} install {' '.join(packages)} >/dev/null")

    def install_driver(self, version):
        """By hand, as the charm does it."""
        driver, modules = self.versions(version)
        common = ("libnvidia-compute", "nvidia-kernel-common", "nvidia-compute-utils")
        names = [*common, "nvidia-utils", "nvidia-headless-no-dkms"]
        self.install(
            *(f"{name}-{nvidiapackages.BRANCH}={driver}" for name in names),
            f"linux-modules-nvidia-{nvidiapackages.BRANCH}-{platform.release()}={modules}",
        )

    def versions(self, version):
        """Those of a driver's packages, and of its modules."""
        show = f"apt-cache show linux-modules-nvidia-{nvidiapackages.BRANCH}-generic"
        stanzas = self.sh(f"apt-get -qq update; {show}").split("\n\n")
        stanza = next(text for text in stanzas if f"(>= {version})" in text)
        modules = re.search(r"^Version: (.*)$", stanza, re.MULTILINE)
        return f"{version}-{nvidiapackages.UBUNTU}", modules[1]


@pytest.fixture(scope="module")
def metal(machines_work):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        shared, park = pathlib.Path(folder, "shared"), Park(pathlib.Path(folder, "lab"))
        shared.mkdir()
        outfit.prepare(shared)
        outfit.prepare_bare(shared)
        try:
            machine = park.up("metal", binds_ro={SHARED: shared, "/srv/repo": REPO})
            outfit.fit(machine, {"gpus": 2, "bare": True}, shared)
            yield Metal(machine)
        finally:
            park.destroy()


@pytest.fixture
def bare(metal):
    """As it came: no package of NVIDIA's, no module, the kernel just booted."""
    yield metal
    metal.sh(PURGE)


def test_it_has_cards_that_nothing_drives(bare):
    assert bare.found() == ["no driver", "0", "", "0000:01:00.0, 0000:02:00.0"]
    for path in ("/dev/nvidia*", "/proc/driver/nvidia", "/sys/module/nvidia"):
        assert bare.sh(f"ls -d {path} 2>&- || :") == ""
    assert bare.sh("dpkg -l '*nvidia*' 2>&- | grep ^.i || :") == ""
    assert bare.sh("ls /run/systemd/container 2>&- || :; ldconfig -p | grep nvidia || :") == ""
    with pytest.raises(CommandError, match="Module nvidia not found"):
        bare.sh("modprobe nvidia")


def test_packages_and_modprobe_make_it_a_gpu_machine_until_the_module_goes(bare):
    bare.install_driver(NEW)
    assert bare.found()[0] == "no driver"
    assert bare.sh("modinfo -F version nvidia").strip() == NEW
    bare.sh("modprobe nvidia; modprobe nvidia_uvm")
    assert bare.found() == ["ready", "2", NEW, ""]
    nodes = bare.sh("ls /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm")
    assert len(nodes.split()) == 4
    assert bare.sh("cat /sys/module/nvidia/version").strip() == NEW
    with pytest.raises(CommandError, match="Module nvidia is in use"):
        bare.sh("modprobe -r nvidia")
    bare.sh("modprobe -r nvidia_uvm; modprobe -r nvidia")
    assert bare.sh("ls -d /dev/nvidia? /sys/module/nvidia* 2>&- || :") == ""
    assert bare.found()[0] == "no driver"


def test_another_driver_is_loaded_by_the_next_boot_alone(bare):
    bare.install_driver(NEW)
    bare.sh("modprobe nvidia_uvm")
    bare.install_driver(OLD)
    assert bare.found() == ["driver and library differ", "0", NEW, f"{NEW} and {OLD}"]
    bare.machine.reboot()
    assert bare.found() == ["ready", "2", OLD, ""]
    assert bare.sh("ls /dev/nvidia-uvm; ls /run/systemd/container 2>&- || :").count("\n") == 1
    bare.sh("apt-get -qq -y purge '*nvidia*' >/dev/null")
    assert bare.sh("ls /usr/lib/*/libnvidia-ml* 2>&- || :; ldconfig -p | grep nvidia || :") == ""
    bare.machine.reboot()
    assert bare.found()[0] == "no driver"


@pytest.mark.parametrize("version", nvidiapackages.TOOLKITS)
def test_the_mirror_has_the_toolkit(bare, version):
    bare.sh(TOOLKIT)
    names = [package.name for package in nvidiapackages.toolkit(version)]
    bare.install(*(f"{name}={version}" for name in names))
    said = bare.sh("nvidia-container-runtime --version")
    assert said.startswith(f"NVIDIA Container Runtime version {version.partition('-')[0]}")
