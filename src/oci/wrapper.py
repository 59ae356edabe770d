# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The OCI wrapper on this machine: its files, its policy, and their removal.

Everything is written before the thing that uses it: the back end, the policy, the NVIDIA runtime's
configuration, the front, and last the launcher by which Concourse's containerd finds the front.
"""

import hashlib
import json
import os
from pathlib import Path

import machine.files as files
import machine.process as process
import machine.templates as templates
from oci import nvidia
from plan import GpuPlan

_CHARM = Path(__file__).resolve().parents[2]
_SOURCES = _CHARM / "lib" / "gpuci"

PYTHON = "/usr/bin/python3"  # the distribution's own: 3.10 on Ubuntu 22.04, 3.12 on 24.04
RUNC = "/opt/concourse/current/bin/runc"
CONTAINERD = "/opt/concourse/current/bin/containerd"

HOME = Path("/opt/gpu-ci")
BIN = HOME / "bin"
FRONT = BIN / "runc"
LAUNCHER = BIN / "containerd-launcher"
LIB = HOME / "lib"
LINK = Path(
    "/usr/local/bin/runc-gpu-wrapper"
)  # for people; its name keeps it out of containerd's way
CONFIG = Path("/etc/gpu-ci")
POLICY = CONFIG / "policy.json"
RUN = Path("/run/gpu-ci")
STORE = RUN / "leases"
CORDONS = RUN / "cordons"
LOG = Path("/var/log/gpu-ci/oci.log")


def apply(gpu: GpuPlan) -> bool:
    """Make the wrapper ready to hand out what `gpu` allows; True if anything was changed.

    Killed at any point, it leaves a wrapper that works, old or new, and can be called again.

    Raises:
        nvidia.ConfigError: the packaged configuration of the NVIDIA runtime can't be read.
        machine.process.CommandError: the back end could not be compiled.
    """
    files.ensure_directory(HOME)
    changed = _install_back_end()
    files.ensure_directory(CONFIG)
    changed |= files.ensure_file(POLICY, policy_text(gpu))
    if gpu.nvidia_runtime:
        changed |= nvidia.configure(CONFIG, RUNC)
    else:
        changed |= files.ensure_absent(nvidia.folder(CONFIG))
    files.ensure_directory(LOG.parent)
    files.ensure_directory(BIN)
    front = templates.render(
        "runc",
        runc=RUNC,
        python=PYTHON,
        lib=LIB / "gpuci",
        store=STORE,
        policy=POLICY,
        bin=BIN,
        log=LOG,
    )
    changed |= files.ensure_file(FRONT, front, mode=0o755)
    changed |= files.ensure_symlink(LINK, FRONT)
    launcher = templates.render("containerd-launcher", bin=BIN, containerd=CONTAINERD)
    return files.ensure_file(LAUNCHER, launcher, mode=0o755) or changed


def remove() -> bool:
    """Take the wrapper away; True if anything of it was there.

    The front goes first, so that the next container finds the real runc. Containers that run keep
    their GPUs until they end.
    """
    changed = False
    for path in (FRONT, LINK, HOME, CONFIG, STORE, CORDONS, LOG.parent):
        changed |= files.ensure_absent(path)
    return files.remove_if_empty(RUN) or changed


def policy_text(gpu: GpuPlan) -> str:
    """What the back end reads as policy.json (lib/gpuci/policy.py)."""
    policy = {
        "version": 2,
        "allocation": gpu.allocation,
        "gpus_per_task": gpu.gpus_per_task,
        "wait_timeout": gpu.wait_timeout,
        "privileged_tasks": gpu.privileged_tasks,
        "vendor": gpu.gpus[0].vendor.value,
        "nvidia_runtime": gpu.nvidia_runtime,
        "config_home": str(CONFIG),
        "driver_capabilities": gpu.driver_capabilities,
        "cordons": [str(CORDONS)],
        "gpus": [
            {
                "index": one.index,
                "uuid": one.uuid,
                "model": one.model,
                "devices": list(one.devices),
                "nodes": list(one.nodes),
            }
            for one in gpu.gpus
        ],
    }
    return json.dumps(policy, indent=1) + "\n"


def _install_back_end() -> bool:
    """Put this charm's lib/gpuci, compiled, behind one symlink; the one before stays beside it."""
    sources = {path.name: path.read_bytes() for path in sorted(_SOURCES.glob("*.py"))}
    version = _content_hash(sources)
    target, link = LIB / version / "gpuci", LIB / "gpuci"
    files.ensure_directory(LIB)
    files.ensure_directory(target.parent)
    files.ensure_directory(target)
    changed = False
    for name, content in sources.items():
        changed |= files.ensure_file(target / name, content)
    current = str(link.readlink()) if link.is_symlink() else ""
    if changed or current != f"{version}/gpuci":
        command = [PYTHON, "-I", "-m", "compileall", "-q", "-f"]
        process.run([*command, "--invalidation-mode", "unchecked-hash", str(target)], timeout=60)
        # Before the switch, so that being killed leaves nothing that the next call would not see.
        kept = {version, Path(current).parent.name}
        for folder in LIB.iterdir():
            if folder != link and folder.name not in kept:
                files.ensure_absent(folder)
    return files.ensure_symlink(link, f"{version}/gpuci") or changed


def _content_hash(sources: dict[str, bytes]) -> str:
    """16 hex digits for these files and the interpreter that they are compiled for."""
    digest = hashlib.sha256(os.path.realpath(PYTHON).encode())
    for name, content in sources.items():
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
