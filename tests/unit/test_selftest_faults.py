# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each fault of the machine turns its own check red, with its remedy, and no other."""

import dataclasses

import pytest

from ci.concourse import release
from gpu_agent.model.host import Toolkit
from gpu_selftest.check import Outcome
from tests.unit.host_site import (
    CONFIG,
    ENGINES_CONFIG,
    ENGINES_FRONT,
    ENVIRONMENT,
    FRONT,
    Site,
    red,
)
from tests.unit.situations import RUNTIME

# Without which the charm takes no release for unpacked.
NOTE = release.CURRENT / release._NOTE


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def write(name, text):
    return lambda site: site.put(name, text)


def add(name, text):
    return lambda site: site.put(name, site.path(name).read_text() + text)


def chmod(name, mode):
    return lambda site: site.path(name).chmod(mode)


def remove(name):
    return lambda site: site.path(name).unlink()


def edit(name, old, new):
    def change(site):
        text = site.path(name).read_text()
        assert old in text
        site.put(name, text.replace(old, new))

    return change


def machine(**values):
    def change(site):
        site.machine = dataclasses.replace(site.machine, **values)

    return change


def compiled(site):
    (path,) = site.root.glob("opt/gpu-ci/lib/*/gpu_runtime/__pycache__/task_call.*.pyc")
    path.write_bytes(path.read_bytes() + b"\0")


def source(site):
    (path,) = site.root.glob("opt/gpu-ci/lib/*/gpu_runtime/lease_manager.py")
    path.write_text(path.read_text() + "\n")


def planted_module(site):
    (folder,) = (path for path in site.root.glob("opt/gpu-ci/lib/*") if not path.is_symlink())
    (folder / "json.py").touch()


def front_is_a_link(site):
    path = site.path(FRONT)
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    path.with_name("moved").rename(path.with_name(".moved"))
    path.unlink()
    path.symlink_to(".moved")


def back_end_elsewhere(site):
    link = site.path("opt/gpu-ci/lib/gpuci")
    link.unlink()
    link.symlink_to("0000000000000000/gpu_runtime")


def runc_is_the_wrapper(site):
    runc = site.path("opt/concourse/8.3.0/bin/runc")
    runc.unlink()
    runc.symlink_to(site.path(FRONT))


BACK = "it is restored within 5 minutes"
FAULTS = {
    "front replaced": (
        write(FRONT, "#!/bin/sh\nexec runc\n"), "gpu-runtime",
        "GPU runtime changed: /opt/gpu-ci/bin/runc has another content", BACK,
    ),
    "front open": (
        chmod(FRONT, 0o777), "gpu-runtime",
        "GPU runtime changed: /opt/gpu-ci/bin/runc has the mode 777, not 755", BACK,
    ),
    "front gone": (
        remove(FRONT), "gpu-runtime", "GPU runtime changed: /opt/gpu-ci/bin/runc is missing", BACK,
    ),
    "front a link": (
        front_is_a_link, "gpu-runtime", "/opt/gpu-ci/bin/runc is now a link, not a file", BACK,
    ),
    "source changed": (source, "gpu-runtime", "/lease_manager.py has another content", BACK),
    "compiled changed": (compiled, "gpu-runtime", ".pyc has another content", BACK),
    "module planted": (
        planted_module, "gpu-runtime", "holds json.py, which gpu-ci-worker did not install", BACK,
    ),
    "program planted": (
        write("opt/gpu-ci/bin/containerd-shim-runc-v2", ""), "gpu-runtime",
        "/opt/gpu-ci/bin holds containerd-shim-runc-v2, which gpu-ci-worker did not install", BACK,
    ),
    "other back end": (
        back_end_elsewhere, "gpu-runtime",
        "/opt/gpu-ci/lib/gpuci leads to 0000000000000000/gpu_runtime, not ", BACK,
    ),
    "link gone": (
        remove("usr/local/bin/runc-gpu-wrapper"), "gpu-runtime",
        "GPU runtime changed: /usr/local/bin/runc-gpu-wrapper is missing", BACK,
    ),
    "policy changed": (
        edit("etc/gpu-ci/policy.json", '"no-gpu"', '"gpu"'), "gpu-runtime",
        "GPU runtime changed: /etc/gpu-ci/policy.json has another content", BACK,
    ),
    "policy's folder open": (
        chmod("etc/gpu-ci", 0o777), "gpu-runtime", "/etc/gpu-ci has the mode 777, not 755", BACK,
    ),
    "engines' front replaced": (
        write(ENGINES_FRONT, "#!/bin/sh\nexec runc\n"), "gpu-runtime",
        "GPU runtime changed: /opt/gpu-ci/engines/gpu-ci has another content", BACK,
    ),
    "engines' front open": (
        chmod(ENGINES_FRONT, 0o777), "gpu-runtime",
        "GPU runtime changed: /opt/gpu-ci/engines/gpu-ci has the mode 777, not 755", BACK,
    ),
    "engines' front gone": (
        remove(ENGINES_FRONT), "gpu-runtime", "/opt/gpu-ci/engines/gpu-ci is missing", BACK,
    ),
    "beside the engines' front": (
        write("opt/gpu-ci/engines/runc", ""), "gpu-runtime",
        "/opt/gpu-ci/engines holds runc, which gpu-ci-worker did not install", BACK,
    ),
    "engines' configuration changed": (
        add(ENGINES_CONFIG, "# x\n"), "gpu-runtime",
        f"/{ENGINES_CONFIG} has another content", BACK,
    ),
    "launcher changed": (
        add("opt/gpu-ci/bin/containerd-launcher", "\n"), "launcher",
        "launcher changed: /opt/gpu-ci/bin/containerd-launcher has another content", BACK,
    ),
    "launcher not in use": (
        Site.start_past_the_launcher, "launcher",
        "launcher not in use: the PATH of Concourse's containerd (4711) has another folder first",
        "sudo systemctl restart concourse-worker.service",
    ),
    "worker not set to use it": (
        write(ENVIRONMENT, "CONCOURSE_RUNTIME=containerd\n"), "launcher",
        "launcher not in use: /etc/concourse/worker.env does not name it", BACK,
    ),
    "foreign runc": (
        write("opt/containerd/bin/runc", ""), "launcher",
        "launcher not in use: /opt/containerd/bin/runc is found before the GPU runtime",
        "sudo rm /opt/containerd/bin/runc",
    ),
    "rival": (
        lambda site: site.listen("/usr/bin/containerd", "containerd.service"), "launcher",
        "launcher not in use: containerd.service uses /run/containerd/containerd.sock",
        "sudo systemctl disable --now containerd.service",
    ),
    "annotations": (
        edit(CONFIG, "annotation-prefixes = []", 'annotation-prefixes = ["cdi.k8s.io/"]'),
        "runtime-config", "annotation-prefixes is not empty, so annotations ask for GPUs", BACK,
    ),
    "loop": (
        edit(CONFIG, '"/opt/concourse/current/bin/runc"', '"runc"'), "runtime-config",
        "runtimes is ['runc'], not ['/opt/concourse/current/bin/runc']", BACK,
    ),
    "volume mounts": (
        edit(CONFIG, "volume-mounts = false", "volume-mounts = true"), "runtime-config",
        "volume mounts ask for GPUs", BACK,
    ),
    "no toml": (write(CONFIG, "a = [\n"), "runtime-config", "config.toml: it is not TOML: ", BACK),
    "config gone": (remove(CONFIG), "runtime-config", "config.toml is missing", BACK),
    "config writable": (
        chmod(CONFIG, 0o666), "runtime-config", "config.toml has the mode 666, not 644", BACK,
    ),
    "runc gone": (
        remove("opt/concourse/8.3.0/bin/runc"), "runtime-config",
        "runc not found: /opt/concourse/current/bin/runc is missing or not a program",
        f"sudo rm {NOTE}`; the charm unpacks Concourse again",
    ),
    "runc is the wrapper": (
        runc_is_the_wrapper, "runtime-config",
        "runc not found: /opt/concourse/current/bin/runc leads back to the GPU runtime, in a loop",
        f"sudo rm {NOTE}`; the charm unpacks Concourse again",
    ),
    "toolkit gone": (
        machine(toolkit=None), "toolkit",
        "toolkit missing: nvidia-container-runtime is missing",
        "install nvidia-container-toolkit 1.19.1 or newer",
    ),
    "toolkit without a version": (
        machine(toolkit=Toolkit(RUNTIME, "")), "toolkit",
        "toolkit's version unknown: cannot read the version of /usr/bin/nvidia-container-runtime",
        "install nvidia-container-toolkit 1.19.1 or newer",
    ),
    "toolkit vulnerable": (
        machine(toolkit=Toolkit(RUNTIME, "1.17.8")), "toolkit",
        "toolkit vulnerable: 1.17.8 has CVE-2026-24260 (CVSS 8.5)",
        "install nvidia-container-toolkit 1.19.1 or newer",
    ),
    "driver too old": (
        Site.ask_for_a_newer_driver, "driver-version",
        "driver too old: 580.95.05 is below the minimum, 580.95.10",
        "newer driver (sudo ubuntu-drivers install --gpgpu nvidia:580-server) and reboot, or juju",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_turns_exactly_its_own_check_red(site, fault):
    healthy = {(one.check, one.gpu): one.outcome for one in site.run()}
    inject, check, text, remedy = FAULTS[fault]
    inject(site)
    results = site.run()
    failed = red(results)
    assert (failed.check, failed.gpu) == (check, "")
    assert text in failed.text
    assert remedy in failed.remedy
    assert ":" in failed.text
    changed = healthy | {(check, ""): Outcome.FAILED}
    assert {(one.check, one.gpu): one.outcome for one in results} == changed
