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

from gpu_agent import paths
from gpu_agent.runtime import manifest
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime import policy
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused
from machine import files, process, templates

_CHARM = Path(__file__).resolve().parents[3]
_SOURCES = _CHARM / "lib" / "gpu_runtime"
_COMPILED = "compiled.json"  # beside the folder gpu_runtime, of each version


def apply(gpu: GpuPlan | None) -> bool:
    """Make the wrapper ready to hand out what `gpu` allows; True if anything was changed.

    Without a plan it hands out no GPU.

    Killed at any point, it leaves a wrapper that works, old or new, and can be called again.

    Raises:
        nvidia.ConfigError: the packaged configuration of the NVIDIA runtime can't be read.
        machine.process.CommandError: the back end could not be compiled.
    """
    files.ensure_directory(paths.HOME)
    changed = _install_back_end()
    files.ensure_directory(paths.CONFIG)
    changed |= files.ensure_file(paths.POLICY, policy_text(gpu))
    if gpu and gpu.nvidia_runtime:
        changed |= nvidia.configure(paths.CONFIG, paths.RUNC)
    else:
        changed |= files.ensure_absent(nvidia.folder(paths.CONFIG))
    files.ensure_directory(paths.LOG.parent)
    files.ensure_directory(paths.BIN)
    front = templates.render(
        paths.TEMPLATES,
        "runc",
        runc=paths.RUNC,
        python=paths.PYTHON,
        lib=paths.BACK_END,
        store=paths.STORE,
        policy=paths.POLICY,
        bin=paths.BIN,
        log=paths.LOG,
    )
    changed |= files.ensure_file(paths.FRONT, front, mode=0o755)
    changed |= files.ensure_symlink(paths.LINK, paths.FRONT)
    launcher = templates.render(
        paths.TEMPLATES, "containerd-launcher", bin=paths.BIN, containerd=paths.CONTAINERD
    )
    return files.ensure_file(paths.LAUNCHER, launcher, mode=0o755) or changed


def remove() -> bool:
    """Take the wrapper away; True if anything of it was there.

    The front goes first, so that the next container finds the real runc. Containers that run keep
    their GPUs until they end, and the store stays until then: were it gone, and the wrapper
    installed again, their GPUs would be given to others. A later call takes it.
    """
    changed = False
    # As gpu_runtime.decision_log has them.
    logs = (paths.LOG, paths.LOG.with_name(f"{paths.LOG.name}.1"))
    for path in (
        paths.FRONT,
        paths.LINK,
        paths.BIN,
        paths.LIB,
        paths.CONFIG,
        paths.CORDONS,
        *logs,
    ):
        changed |= files.ensure_absent(path)
    for folder in (paths.HOME, paths.LOG.parent):
        changed |= files.remove_if_empty(folder)
    if not _has_users():
        changed |= files.ensure_absent(paths.STORE)
    return files.remove_if_empty(paths.RUN) or changed


def installed() -> dict[str, str]:
    """What each file, link and folder of the wrapper is, by path, as the manifest tells it.

    With those of the engines' runtime, where more of it is here than a link to runc.

    To be asked right after `apply`, which has made them what they must be. Empty where it has not
    been called. Folders from which programs or modules are taken may hold nothing else.
    """
    if not paths.FRONT.exists():
        return {}
    back_end = paths.BACK_END.resolve()
    compiled = _compiled(back_end)
    sources = sorted(path.name for path in _SOURCES.glob("*.py"))
    holds = {
        paths.HOME: None,
        paths.BIN: (paths.FRONT.name, paths.LAUNCHER.name, paths.SELFTEST.name),
        paths.LIB: None,
        back_end.parent: (back_end.name, _COMPILED),
        back_end: (*sources, "__pycache__"),
        back_end / "__pycache__": None,
        paths.CONFIG: None,
    }
    others = [
        paths.FRONT,
        paths.LAUNCHER,
        paths.LINK,
        paths.POLICY,
        paths.BACK_END,
        back_end.parent / _COMPILED,
    ]
    others += [back_end / name for name in sources]
    others += [back_end / "__pycache__" / name for name in compiled]
    if (runtime := paths.ENGINES / "gpu-ci").is_file() and not runtime.is_symlink():
        holds |= {paths.ENGINES: (runtime.name,)}
        others.append(runtime)
    for home in (paths.CONFIG, paths.ENGINES_CONFIG):
        if (config := nvidia.folder(home) / "config.toml").exists():
            holds |= {home: None, config.parent: None}
            others.append(config)
    told = {path: manifest.folder(path, names) for path, names in holds.items()}
    told |= {path: manifest.describe(path) for path in others}
    return {str(path): what for path, what in told.items()}


def policy_text(gpu: GpuPlan | None) -> str:
    """What the back end reads as policy.json (lib/gpu_runtime/policy.py)."""
    if gpu is None:
        return json.dumps({"version": policy.VERSION, "gpus": []}, indent=1) + "\n"
    content = {
        "version": policy.VERSION,
        "allocation": gpu.allocation,
        "gpus_per_task": gpu.gpus_per_task,
        "wait_timeout": gpu.wait_timeout,
        "hijack_limit": gpu.hijack_limit,
        "privileged_tasks": gpu.privileged_tasks,
        "vendor": gpu.gpus[0].vendor.value,
        "nvidia_runtime": gpu.nvidia_runtime,
        "config_home": str(paths.CONFIG),
        "driver": gpu.driver,
        "cuda": gpu.cuda,
        "cordons": [str(paths.CORDONS), str(paths.QUARANTINE)],
        "gpus": [
            {
                "index": one.index,
                "uuid": one.uuid,
                "model": one.model,
                "devices": list(one.devices),
                "nodes": list(one.nodes),
                "minor": one.minor if one.minor >= 0 else None,
                "arch": one.arch,
                "brand": one.brand,
            }
            for one in gpu.gpus
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def _has_users() -> bool:
    """Whether a container may still have GPUs by the store; what can't be told is no absence."""
    host = Host()
    try:
        holders = Store(str(paths.STORE)).read().holders
        return not all(host.is_gone(name, holder) for name, holder in holders.items())
    except (OSError, ValueError, Refused):
        return True


def _install_back_end() -> bool:
    """Put lib/gpu_runtime, compiled, behind one symlink; the version before stays beside it."""
    sources = {path.name: path.read_bytes() for path in sorted(_SOURCES.glob("*.py"))}
    version = _content_hash(sources)
    target = paths.LIB / version / "gpu_runtime"
    files.ensure_directory(paths.LIB)
    files.ensure_directory(target.parent)
    files.ensure_directory(target)
    changed = False
    for name, content in sources.items():
        changed |= files.ensure_file(target / name, content)
    current = str(paths.BACK_END.readlink()) if paths.BACK_END.is_symlink() else ""
    if changed or current != f"{version}/gpu_runtime" or not _is_compiled(target):
        changed = True
        command = [paths.PYTHON, "-s", "-m", "compileall", "-q", "-f"]
        command += ["--invalidation-mode", "unchecked-hash", str(target)]
        # Python 3.10 writes the elements of a set in an order that is else another each time.
        process.run(command, timeout=60, env={"PYTHONHASHSEED": "0"})
        folder = target / "__pycache__"
        made = {path.name: manifest.checksum(path) for path in sorted(folder.glob("*.pyc"))}
        files.ensure_file(target.parent / _COMPILED, json.dumps(made, indent=1) + "\n")
        # Before the switch, so that being killed leaves nothing that the next call would not see.
        kept = {version, Path(current).parent.name}
        for folder in paths.LIB.iterdir():
            if folder != paths.BACK_END and folder.name not in kept:
                files.ensure_absent(folder)
    return files.ensure_symlink(paths.BACK_END, f"{version}/gpu_runtime") or changed


def _compiled(target: Path) -> dict[str, str]:
    """Name and checksum of each compiled module of the back end when it was made."""
    return json.loads(files.read_text(target.parent / _COMPILED) or "{}")


def _is_compiled(target: Path) -> bool:
    """Whether the modules are still what they were when they were made.

    The interpreter takes them as they are, without a look at their sources.
    """
    made, folder = _compiled(target), target / "__pycache__"
    return bool(made) and all(
        manifest.checksum(folder / name) == checksum for name, checksum in made.items()
    )


def _content_hash(sources: dict[str, bytes]) -> str:
    """16 hex digits for these files and the interpreter that they are compiled for."""
    digest = hashlib.sha256(os.path.realpath(paths.PYTHON).encode())
    for name, content in sources.items():
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
