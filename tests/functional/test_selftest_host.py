# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test's checks of the machine on a real one: the installed wrapper, nodes, processes."""

import dataclasses
import json
import os
import platform
import sys

import pytest

from gpu_selftest.check import Outcome
from gpu_selftest.quick import device_nodes
from tests.fakes import FAKEGPU
from tests.functional.containerd_worker import (
    LAUNCHER,
    NEEDS,
    ROOT,
    RUNTIME,
    UUIDS,
    worker_in_a_namespace,
)
from tests.unit.host_site import DEVICES, Site, named, red
from tests.unit.situations import GPUS
from tests.unit.wrapper_rig import CONCOURSE

ONE, TWO = UUIDS
pytestmark = NEEDS

# What the charm does: install the wrapper, and keep what the self-test must know.
INSTALL = f"""
from gpu_agent.gpu.vendors import detect
from ci.concourse.worker import launcher
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan, TaskFolders
from ci.concourse import agent_view
from gpu_selftest import settings
gpus = detect.detect().gpus
install.apply(GpuPlan(gpus, {RUNTIME!r}, **{CONCOURSE!r}))
launcher.ensure()
view = agent_view.make("worker", has_web=False)
settings.write(
    settings.Settings(
        "worker/0", gpus=gpus, files=install.installed([launcher.PATH]),
        programs=(str(launcher.PATH),),
        runc=view.runc, runc_remedy=view.runc_remedy, checks=view.checks, disks=view.disks,
    )
)
"""
CHECK = """
import json
from gpu_selftest import run, settings
from gpu_selftest.quick import ci_checks, host_checks
kept = settings.read()
answer = ci_checks.ask(kept, [check.id for check in run.CHECKS])
found = host_checks.run(kept, host_checks.look(kept), answer)
print(json.dumps([[one.check, one.gpu, one.outcome.value, one.text, one.remedy] for one in found]))
"""
# Something that stays, where Concourse has its containerd.
SETUP = """
rm /opt/concourse/current/bin/containerd
cp "$(command -v sleep)" /opt/concourse/current/bin/containerd
mkdir -p /etc/concourse /var/lib/concourse /var/lib/gpu-ci /etc/systemd/system
echo 'CONCOURSE_BAGGAGECLAIM_DRIVER=naive' >/etc/concourse/worker.env
echo 'CONCOURSE_CONTAINERD_BIN="/opt/gpu-ci/bin/containerd-launcher"' >>/etc/concourse/worker.env
echo 'ExecStart=concourse "--tag=gpu-type=nvidia"' >/etc/systemd/system/concourse-worker.service
"""


class Checked:
    def __init__(self, rows):
        self.outcomes = {(check, gpu): outcome for check, gpu, outcome, *_ in rows}
        self.failed = [row for row in rows if row[2] == "failed"]


class Worker:
    """The charm's code in a namespace with two simulated GPUs."""

    def __init__(self, host):
        self.host = host
        self.python(INSTALL)
        self.shell(SETUP)

    def python(self, code):
        path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
        done = self.host.inside(sys.executable, "-c", code, env=path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shell(self, line):
        done = self.host.inside("sh", "-ec", line)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check(self):
        return Checked(json.loads(self.python(CHECK)))


@pytest.fixture(scope="module")
def worker():
    with worker_in_a_namespace() as host:
        yield Worker(host)


def test_a_healthy_worker_passes(worker):
    outcomes = worker.check().outcomes
    # How much room this machine has is not the test's to say.
    assert {outcome for key, outcome in outcomes.items() if key != ("disk", "")} == {
        "passed", "skipped",
    }  # fmt: skip
    assert {gpu for check, gpu in outcomes if check == "device-nodes"} == {"", ONE, TWO}


FAULTS = [
    (
        "cp /bin/true /opt/gpu-ci/bin/runc", INSTALL, "gpu-runtime", "",
        "GPU runtime changed: /opt/gpu-ci/bin/runc has another content", "within 5 minutes",
    ),
    (
        "chown 1 /opt/gpu-ci/lib/gpuci/lease_manager.py", INSTALL, "gpu-runtime", "",
        "has the owner 1:0, not 0:0", "within 5 minutes",
    ),
    (
        "for f in /opt/gpu-ci/lib/gpuci/__pycache__/container_spec.*; do echo >>$f; done", INSTALL,
        "gpu-runtime", "", "has another content", "within 5 minutes",
    ),
    (
        "sed -i 's/^annotation-prefixes.*//' /etc/gpu-ci/nvidia-container-runtime/config.toml",
        INSTALL, "runtime-config", "", "annotation-prefixes is not empty", "within 5 minutes",
    ),
    (
        "mv /opt/concourse/current/bin/runc /opt/concourse/current/bin/x",
        "mv /opt/concourse/current/bin/x /opt/concourse/current/bin/runc",
        "runtime-config", "", "runc not found: ", "`sudo rm /opt/concourse/current/.release.json`",
    ),
    (
        "mkdir -p /opt/containerd/bin; touch /opt/containerd/bin/runc", "rm -r /opt/containerd",
        "launcher", "", "launcher not in use: ", "sudo rm /opt/containerd/bin/runc",
    ),
    (
        "mv /usr/bin/nvidia-container-runtime /usr/bin/nvidia-x",
        "mv /usr/bin/nvidia-x /usr/bin/nvidia-container-runtime",
        "toolkit", "", "toolkit missing: ", "install nvidia-container-toolkit 1.19.1 or newer",
    ),
    (
        "chmod 660 /dev/nvidia1", "chmod 666 /dev/nvidia1", "device-nodes", TWO,
        "device node closed: /dev/nvidia1 has mode 0660 (0:root)",
        f"lxc config device set {platform.node()} <device> mode=0666 on the host",
    ),
    (
        "mount -t tmpfs -o size=900m tmpfs /var/lib/concourse", "umount /var/lib/concourse",
        "disk", "", "disk full: 0.9 GB free for /var/lib/concourse", "sudo du -xh",
    ),
    (
        "mount -B -o ro /var/lib/concourse /var/lib/concourse",
        "umount /var/lib/concourse", "volumes", "", "no volumes: ", "journalctl -k",
    ),
]  # fmt: skip


# In one run, no check has two faults.
RUNS = [[one] for one in FAULTS] if "GPUCI_SOAK" in os.environ else [
    [FAULTS[0], FAULTS[3], FAULTS[5], FAULTS[7], FAULTS[8]],
    [FAULTS[1], FAULTS[4], FAULTS[9]],
    [FAULTS[2], FAULTS[6]],
]  # fmt: skip


@pytest.fixture(scope="module")
def healthy(worker):
    return worker.check().outcomes


@pytest.mark.parametrize("faults", RUNS, ids=["+".join(one[2] for one in run) for run in RUNS])
def test_a_fault_turns_its_own_check_red_until_it_is_mended(worker, healthy, faults):
    for inject, *_ in faults:
        worker.shell(inject)
    try:
        found = worker.check()
    finally:
        for mend in {mend for _, mend, *_ in faults}:
            (worker.python if mend is INSTALL else worker.shell)(mend)
    failed = {(check, gpu): (said, what) for check, gpu, _, said, what in found.failed}
    assert failed.keys() == {(check, gpu) for _, _, check, gpu, *_ in faults}
    for _, _, check, gpu, text, remedy in faults:
        said, what_to_do = failed[check, gpu]
        assert text in said
        assert remedy in what_to_do
    assert found.outcomes == healthy | dict.fromkeys(failed, "failed")
    assert worker.check().outcomes == healthy


@pytest.mark.parametrize("kind", ["--fallen-off-bus", "--nvml-only"])
def test_a_lost_gpu_is_missed_until_it_is_back(worker, kind):
    worker.check()
    worker.shell(f"{FAKEGPU} lose 1 {kind}")
    try:
        (failed,) = worker.check().failed
    finally:
        worker.shell(f"{FAKEGPU} restore 1")
    assert failed[:2] == ["inventory", TWO]
    assert failed[3].startswith("lost: GPU 1 (")
    assert failed[4].endswith(f"gpu-uncordon gpu={TWO}")
    assert worker.check().failed == []


def test_a_containerd_is_told_by_how_it_was_started(worker):
    """The real launcher, and a program where Concourse has its containerd."""
    start = (
        "{} 300 </dev/null >/dev/null 2>&1 & pid=$!; "
        "until [ $(readlink /proc/$pid/exe) = /opt/concourse/current/bin/containerd ]; "
        "do sleep 0.1; done; echo $pid"
    )
    for program, outcome in ((LAUNCHER, "passed"), ("/opt/concourse/current/bin/containerd", "f")):
        pid = int(worker.shell(start.format(program)))
        try:
            found = worker.check()
        finally:
            os.kill(pid, 9)
        if outcome == "passed":
            assert found.failed == []
            continue
        ((check, _, _, text, remedy),) = found.failed
        assert check == "launcher"
        assert f"the PATH of Concourse's containerd ({pid}) has another folder first" in text
        assert "sudo systemctl restart concourse-worker.service" in remedy


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


CHMOD = (
    "sudo chmod 666 /dev/nvidia0; to keep the mode, put `options nvidia NVreg_DeviceFileMode=0666`"
)
NODES = {
    "GPU's node closed": (
        lambda site: site.path("dev/nvidia0").chmod(0o660), GPUS[0].uuid,
        "closed: /dev/nvidia0 has mode 0660 (0:root): only root can open it", CHMOD,
    ),
    "GPU's node read only": (
        lambda site: site.path("dev/nvidia0").chmod(0o664), GPUS[0].uuid,
        "closed: /dev/nvidia0 has mode 0664", CHMOD,
    ),
    "GPU's node missing": (
        lambda site: site.path("dev/nvidia1").unlink(), GPUS[1].uuid,
        "missing: /dev/nvidia1 does not exist", "sudo nvidia-modprobe -c=1",
    ),
    "GPU's node of another": (
        lambda site: site.node("nvidia1", 195, 0), GPUS[1].uuid,
        "wrong: /dev/nvidia1 has numbers 195:0, not 195:1",
        "sudo rm /dev/nvidia1; sudo nvidia-modprobe -c=1",
    ),
    "a file in place of a node": (
        lambda site: (site.path("dev/nvidiactl").unlink(), site.put("dev/nvidiactl", "")), "",
        "wrong: /dev/nvidiactl is not a character device",
        "sudo rm /dev/nvidiactl; sudo nvidia-modprobe -c=255",
    ),
    "no uvm": (
        lambda site: site.path("dev/nvidia-uvm").unlink(), "",
        "missing: /dev/nvidia-uvm does not exist", "sudo nvidia-modprobe -u -c=0",
    ),
    "uvm of an earlier boot": (
        lambda site: site.node("nvidia-uvm", 509, 0), "",
        "wrong: /dev/nvidia-uvm has numbers 509:0, not 510:0",
        "sudo rm /dev/nvidia-uvm; sudo nvidia-modprobe -u -c=0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", NODES)
def test_a_fault_of_a_node_fails_its_gpu_or_all(site, fault):
    inject, gpu, text, remedy = NODES[fault]
    inject(site)
    failed = red(site.run())
    assert (failed.check, failed.gpu) == ("device-nodes", gpu)
    assert text in failed.text
    assert remedy in failed.remedy


def test_in_a_container_the_host_must_mend_it(site):
    site.put("run/systemd/container", "lxc\n")
    site.put("proc/sys/kernel/hostname", "juju-a1b2-0\n")
    site.path("dev/nvidia-uvm").unlink()
    failed = red(site.run())
    assert failed.remedy == (
        "lxc config device add juju-a1b2-0 nvidia-uvm unix-char source=/dev/nvidia-uvm mode=0666 "
        "on the host"
    )


def test_a_node_for_profilers_is_no_reason_to_stop(site):
    site.path("dev/nvidia-uvm-tools").unlink()
    results = site.run()
    assert named(results, Outcome.FAILED) == []
    assert named(results, Outcome.WARNING) == [("device-nodes", "")]


@pytest.fixture
def amd(tmp_path):
    """An AMD GPU, and its nodes as udev makes them."""
    nodes = ("/dev/kfd", "/dev/dri/by-path/pci-0000:41:00.0-render")
    gpu = dataclasses.replace(GPUS[0], vendor="amd", uuid="GPU-amd", minor=-1, nodes=nodes)
    (tmp_path / "dev/dri/by-path").mkdir(parents=True)
    (tmp_path / nodes[1].lstrip("/")).symlink_to("../renderD128")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(DEVICES + "235 kfd\n")

    def make(kfd=(235, 0), render=(226, 128), mode=0o660):
        for name, numbers in (("kfd", kfd), ("dri/renderD128", render)):
            path = tmp_path / "dev" / name
            path.unlink(missing_ok=True)
            os.mknod(path, 0o020600, os.makedev(*numbers))
            path.chmod(mode)
        return {one.gpu: one for one in device_nodes.run((gpu,), tmp_path)}

    return make


def test_the_nodes_of_other_vendors_may_be_their_groups(amd):
    assert {one.outcome for one in amd().values()} == {Outcome.PASSED}


@pytest.mark.parametrize(
    ("given", "gpu", "text", "remedy"),
    [
        ({"kfd": (234, 0)}, "", "/dev/kfd has numbers 234:0, not 235:0", "match=kfd; "),
        ({"render": (226, 129)}, "GPU-amd", "has numbers 226:129, not 226:128", "reboot"),
        ({"mode": 0o600}, "GPU-amd", "has mode 0600 (0:root)", "sudo chmod 660 /dev/dri/by-path"),
        ({"mode": 0o640}, "", "/dev/kfd has mode 0640", "sudo chmod 660 /dev/kfd"),
    ],
)
def test_the_nodes_of_other_vendors_must_be_theirs(amd, given, gpu, text, remedy):
    result = amd(**given)[gpu]
    assert result.outcome is Outcome.FAILED
    assert text in result.text
    assert remedy in result.remedy
