# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""scripts/lxd-gpu against a real LXD with simulated GPUs, in a machine that is thrown away.

Juju is a stand-in: two files with what it would say.
"""

import json
import os
import pathlib
import shutil
import tempfile

import pytest

from tests import fakes, once
from tests.lab.park import Park

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
NEEDED = ("systemd-nspawn", "gcc", "busybox", "lxd", "lxc")
MISSING = [name for name in NEEDED if not shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not installed: {', '.join(MISSING)} (LXD of a snap can't be used: on Debian "
        "apt-get install --no-install-recommends lxd lxd-client)",
    ),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

ONE, TWO = "0000:01:00.0", "0000:02:00.0"
FIRST, SECOND = ["nvidia0", "renderD160"], ["nvidia1", "renderD161"]
BOTH = sorted(FIRST + SECOND)
# No network: LXD looks for its lists of images and instance types elsewhere.
PRESEED = """
config:
  images.auto_update_interval: "0"
  core.proxy_https: http://127.0.0.1:9
  core.proxy_http: http://127.0.0.1:9
networks: []
storage_pools: [{name: default, driver: dir}]
profiles: [{name: default, config: {}, devices: {root: {path: /, pool: default, type: disk}}}]
"""
# An ordinary user of the host can't open them, nor of a container that has the host's mode.
NVIDIA = f"{fakes.FAKEGPU} install --count 2 && chmod 600 /dev/nvidia*[0-9]"
# A root that holds busybox and does nothing; it has to be linked statically.
IMAGE = r"""
mkdir -p /srv/image/rootfs && cd /srv/image/rootfs && mkdir bin sbin dev proc sys etc tmp run
cp "$(command -v busybox)" bin
printf '#!/bin/busybox sh\nexec /bin/busybox sleep 100000\n' >sbin/init && chmod 755 sbin/init
cd .. && printf 'architecture: %s\ncreation_date: 1700000000\n' "$(uname -m)" >metadata.yaml
tar -czf /srv/image.tgz metadata.yaml rootfs
lxc image import /srv/image.tgz --alias busybox
"""
# Of a node, as somebody who is not root: ENXIO says that it is here and may be opened.
LOOK = """
for node in /dev/nvidia[0-9] /dev/kfd /dev/dri/render*; do
    case $(/bin/busybox dd if=$node count=0 2>&1) in *'No such device'*) echo $node ;; esac
done
"""


class LxdHost:
    """The machine, and the model of the stand-in for Juju: worker units 0 to `units` - 1."""

    def __init__(self, machine):
        self.machine = machine

    def sh(self, script, check=True):
        done = self.machine.run(["/bin/sh", "-euc", script], check=check, timeout=180)
        return done.stdout

    def deploy(self, units, project="default", launch=True):
        names = [f"juju-0a1b2c-{number}" for number in range(units)]
        for name in names if launch else ():
            made = f"-p default -p juju-ci --project {project} -c user.juju-model-uuid=c0ffee"
            self.sh(f"lxc launch busybox {name} {made}")
        status = {
            "model": {"name": "ci"},
            "machines": {str(n): {"instance-id": name} for n, name in enumerate(names)},
            "applications": {
                "worker": {"units": {f"worker/{n}": {"machine": str(n)} for n in range(units)}}
            },
        }
        options = {"deployment-mode": "worker", "enable-gpu": True, "gpu-vendor": "auto"}
        settings = {"settings": {key: {"value": value} for key, value in options.items()}}
        self.machine.write("/srv/juju/status", json.dumps(status))
        about = {"ci": {"name": "admin/ci", "model-uuid": "c0ffee"}}
        self.machine.write("/srv/juju/show-model", json.dumps(about))
        self.machine.write("/srv/juju/config", json.dumps(settings))
        return names

    def lxd_gpu(self, *arguments, path=""):
        """Its exit status, and what it says; without anybody to ask."""
        env = {"PATH": f"{path}/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
        command = ["/srv/scripts/lxd-gpu", "worker", *arguments]
        done = self.machine.run(command, env=env, check=False, timeout=180)
        return done.returncode, done.stdout + done.stderr

    def opens(self, name, project="default"):
        """The cards whose nodes an ordinary user of a container can open."""
        look = ["/usr/bin/lxc", "exec", "--project", project, "--user", "1000", name]
        done = self.machine.run([*look, "--", "/bin/busybox", "sh", "-c", LOOK], check=False)
        return [pathlib.Path(node).name for node in done.stdout.split()]

    def devices(self, name):
        (told,) = json.loads(self.sh(f"lxc list --format json '^{name}$'"))
        return set(told["devices"])


@pytest.fixture(scope="module")
def host():
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        libraries = pathlib.Path(folder, "nvml")
        once.put("nvml", fakes.build_nvml, libraries)
        binds = {"/srv/fakes": SCRIPTS.parent / "tests/fakes", "/srv/nvml": libraries}
        binds["/srv/scripts"] = SCRIPTS
        park = Park(pathlib.Path(folder, "park"))
        try:
            machine = park.up("lxd", binds=["/var/lib/lxd"], binds_ro=binds)
            host = LxdHost(machine)
            for source, target in fakes.gpu_files(libraries).items():
                shown = "/srv/nvml" if source.parent == libraries else "/srv/fakes"
                host.sh(f"install -D -m 755 {shown}/{source.name} {target}")
            host.sh(NVIDIA)
            machine.write("/srv/preseed", PRESEED)
            host.sh("systemctl start lxd.service && lxd init --preseed </srv/preseed")
            host.sh(IMAGE)
            juju = '#!/bin/sh\n# Stand-in for juju.\ncat "/srv/juju/$1"\n'
            machine.write("/usr/local/bin/juju", juju, 0o755)
            yield host
        finally:
            park.destroy()


@pytest.fixture
def lxd(host):
    host.sh("lxc profile create juju-ci")
    yield host
    host.sh(
        "for name in $(lxc list -f csv -c n); do lxc delete -f $name; done; "
        "lxc profile delete juju-ci"
    )


def test_each_unit_gets_its_cards_for_all_its_users_and_gives_them_back(lxd):
    first, second = lxd.deploy(2)
    before = lxd.devices(first)
    status, said = lxd.lxd_gpu("--dry-run")
    assert (status, lxd.devices(first)) == (0, before)
    assert f"\n  lxc config device add {second} gpuci-0000-02-00.0 gpu gputype=physical " in said
    assert lxd.lxd_gpu()[0] == 1
    assert lxd.opens(first) == []

    status, said = lxd.lxd_gpu("--yes")
    assert status == 0, said
    assert (lxd.opens(first), lxd.opens(second)) == (FIRST, SECOND)
    assert "Nothing to do" in lxd.lxd_gpu("--yes")[1]

    assert lxd.lxd_gpu("--yes", "--gpus", "1", "--share")[0] == 0
    assert (lxd.opens(first), lxd.opens(second)) == (SECOND, SECOND)
    assert lxd.lxd_gpu("--yes", "--undo")[0] == 0
    assert (lxd.opens(first), lxd.opens(second)) == ([], [])
    assert lxd.devices(first) == before


def test_a_run_that_was_killed_between_two_cards_is_gone_on_with(lxd):
    (name,) = lxd.deploy(1)
    killing = '#!/bin/sh\n/usr/bin/lxc "$@" || exit\n[ "$3" != add ] || kill -9 $PPID\n'
    lxd.machine.write("/srv/killing/lxc", killing, 0o755)
    assert lxd.lxd_gpu("--yes", path="/srv/killing:")[0] != 0
    assert lxd.opens(name) == FIRST
    status, said = lxd.lxd_gpu("--yes")
    assert (status, lxd.opens(name)) == (0, BOTH)
    assert said.count("done: ") == 1


def test_a_machine_to_come_has_the_models_card_from_birth(lxd):
    lxd.deploy(1)
    assert lxd.lxd_gpu("--yes", "--profile", "--gpus", TWO)[0] == 0
    assert "Nothing to do" in lxd.lxd_gpu("--profile", "--gpus", TWO)[1]
    lxd.sh("lxc launch busybox new -p default -p juju-ci")
    assert lxd.opens("new") == SECOND
    assert lxd.lxd_gpu("--yes", "--profile", "--undo")[0] == 0
    assert lxd.opens("new") == []


def test_cards_of_another_instance_are_left_alone(lxd):
    (name,) = lxd.deploy(1)
    lxd.sh("lxc init busybox games; lxc config device add games gpu gpu id=32")
    status, said = lxd.lxd_gpu("--yes")
    assert (status, lxd.opens(name)) == (0, SECOND), said
    lxd.sh("lxc config device unset games gpu id")
    assert lxd.lxd_gpu("--undo", "--yes")[0] == 0
    status, said = lxd.lxd_gpu("--yes")
    assert (status, lxd.opens(name)) == (1, [])
    assert f"GPU {ONE} is held by games" in said


def test_lxds_own_error_is_told_and_mended_in_its_project(lxd):
    lxd.sh(
        "lxc project create ours -c features.images=false; "
        "lxc profile create juju-ci --project ours; "
        "lxc profile device add default root disk path=/ pool=default --project ours"
    )
    try:
        (name,) = lxd.deploy(1, "ours")
        lxd.sh("lxc project set ours restricted=true")
        status, said = lxd.lxd_gpu("--yes")
        assert status == 1
        assert "GPU devices are forbidden\n0 of 2 done: run this again to continue" in said
        lxd.sh("lxc project set ours restricted.devices.gpu=allow")
        assert lxd.lxd_gpu("--yes")[0] == 0
        assert lxd.opens(name, "ours") == BOTH
    finally:
        lxd.sh(
            "lxc delete -f juju-0a1b2c-0 --project ours; "
            "lxc profile delete juju-ci --project ours; lxc project delete ours"
        )


def test_it_must_be_this_lxd(lxd):
    lxd.deploy(1, launch=False)
    status, said = lxd.lxd_gpu("--yes")
    assert (status, "juju-0a1b2c-0, which this LXD does not have" in said) == (1, True)


def test_amds_card_comes_with_the_node_that_rocm_computes_through(lxd):
    (name,) = lxd.deploy(1)
    lxd.sh(f"{fakes.FAKEGPU} install --count 1 --vendor amd")
    try:
        status, said = lxd.lxd_gpu("--yes")
        assert (status, lxd.opens(name)) == (0, ["kfd", FIRST[1]]), said
        assert "Nothing to do" in lxd.lxd_gpu()[1]
    finally:
        lxd.sh(f"lxc stop -f {name}; {NVIDIA}")


def test_containers_that_may_have_containers_see_the_id_of_their_kernels_boot(lxd):
    """So that two units tell whether they have one card or two of the same id."""
    own, shown = (f"{proc}/sys/kernel/random/boot_id" for proc in ("/proc", "/dev/.lxc/proc"))
    names = lxd.deploy(2)
    for name in names:
        lxd.sh(f"lxc config set {name} security.nesting=true; lxc restart -f {name}")
    look = "lxc exec {name} -- /bin/busybox cat {path}"
    assert {lxd.sh(look.format(name=name, path=shown)) for name in names} == {
        pathlib.Path(own).read_text()
    }
    assert len({lxd.sh(look.format(name=name, path=own)) for name in names}) == 2
