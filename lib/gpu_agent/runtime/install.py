# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Install and remove the GPU runtime on this machine: its files and its policy.

Each file is written before the file that uses it: the Python modules, the policy, the NVIDIA
runtime's configuration, and last the front, which a CI system's worker finds under the name runc.
"""

import collections.abc
import hashlib
import json
import os
from pathlib import Path

from gpu_agent import paths
from gpu_agent.gpu.vendors import registry
from gpu_agent.runtime import manifest
from gpu_agent.runtime import nvidia_config as nvidia
from gpu_agent.runtime import runc as runcs
from gpu_agent.runtime.settings import GpuPlan, TaskFolders
from gpu_runtime import policy
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused
from machine import files, process, templates

_CHARM = Path(__file__).resolve().parents[3]
_SOURCES = _CHARM / "lib" / "gpu_runtime"
_COMPILED = "compiled.json"  # beside the folder gpu_runtime, of each version


def apply(gpu: GpuPlan) -> bool:
    """Install the GPU runtime with this plan; return True if anything was changed.

    If this is killed at any point, a working runtime remains, old or new, and this can be called
    again.

    Raises:
        ValueError: the plan's folders of tasks can't be.
        nvidia.ConfigError: the packaged configuration of the NVIDIA runtime can't be read.
        machine.process.CommandError: the modules could not be compiled.
    """
    runc, text = runcs.for_tasks(gpu.runc), policy_text(gpu)
    files.ensure_directory(paths.HOME)
    changed = _install_back_end()
    files.ensure_directory(paths.CONFIG)
    changed |= files.ensure_file(paths.POLICY, text)
    if gpu.nvidia_runtime:
        changed |= nvidia.configure(paths.CONFIG, runc)
    else:
        changed |= files.ensure_absent(nvidia.folder(paths.CONFIG))
    files.ensure_directory(paths.LOG.parent)
    files.ensure_directory(paths.BIN)
    front = templates.render(
        paths.TEMPLATES,
        "runc",
        runc=runc,
        tasks=pattern(gpu.tasks),
        python=paths.PYTHON,
        lib=paths.BACK_END,
        store=paths.STORE,
        policy=paths.POLICY,
        bin=paths.BIN,
        log=paths.LOG,
    )
    changed |= files.ensure_file(paths.FRONT, front, mode=0o755)
    return files.ensure_symlink(paths.LINK, paths.FRONT) or changed


def remove() -> bool:
    """Remove the GPU runtime; return True if any of its files was there.

    Its runc is removed first, so that the next container uses the real one. Running containers
    keep their GPUs, and the store of leases stays until they end: otherwise a new installation
    would hand out their GPUs. A later call removes the store.
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
        paths.EXTERNAL,
        paths.CLOSED,
        *logs,
    ):
        changed |= files.ensure_absent(path)
    for folder in (paths.HOME, paths.LOG.parent):
        changed |= files.remove_if_empty(folder)
    if not _has_users():
        changed |= files.ensure_absent(paths.STORE)
    return files.remove_if_empty(paths.RUN) or changed


def installed(others: collections.abc.Iterable[Path] = ()) -> dict[str, str]:
    """Describe each file, link and folder of the GPU runtime by path, for the manifest.

    The files of the engines' runtime are included if it is more than a link to runc. Call this
    right after `apply`; before the first `apply` it is empty. Folders with programs or modules may
    hold nothing else.

    Args:
        others: a CI system's programs beside the runtime's. One that is missing is not included.
    """
    if not paths.FRONT.exists():
        return {}
    back_end = paths.BACK_END.resolve()
    compiled = _compiled(back_end)
    sources = sorted(path.name for path in _SOURCES.glob("*.py"))
    programs = [*others]
    holds = {
        paths.HOME: None,
        paths.BIN: (paths.FRONT.name, paths.SELFTEST.name, *(path.name for path in programs)),
        paths.LIB: None,
        back_end.parent: (back_end.name, _COMPILED),
        back_end: (*sources, "__pycache__"),
        back_end / "__pycache__": None,
        paths.CONFIG: None,
    }
    listed = [
        paths.FRONT,
        *(path for path in programs if path.exists()),
        paths.LINK,
        paths.POLICY,
        paths.BACK_END,
        back_end.parent / _COMPILED,
    ]
    listed += [back_end / name for name in sources]
    listed += [back_end / "__pycache__" / name for name in compiled]
    if (runtime := paths.ENGINES / "gpu-ci").is_file() and not runtime.is_symlink():
        holds |= {paths.ENGINES: (runtime.name,)}
        listed.append(runtime)
    for home in (paths.CONFIG, paths.ENGINES_CONFIG):
        if (config := nvidia.folder(home) / "config.toml").exists():
            holds |= {home: None, config.parent: None}
            listed.append(config)
    told = {path: manifest.folder(path, names) for path, names in holds.items()}
    told |= {path: manifest.describe(path) for path in listed}
    return {str(path): what for path, what in told.items()}


def policy_text(gpu: GpuPlan) -> str:
    """The content of policy.json (lib/gpu_runtime/policy.py).

    Raises:
        ValueError: the plan's folders of tasks can't be.
    """
    tasks: dict[str, object] = {"parent": gpu.tasks.parent, "others": [*gpu.tasks.others]}
    policy.task_folders(tasks)
    if not gpu.gpus:
        empty: dict[str, object] = {"version": policy.VERSION, "tasks": tasks, "gpus": []}
        return json.dumps(empty, indent=1) + "\n"
    vendor = registry.find(gpu.gpus[0].vendor)
    content = {
        "version": policy.VERSION,
        "tasks": tasks,
        "allocation": gpu.allocation,
        "gpus_per_task": gpu.gpus_per_task,
        "wait_timeout": gpu.wait_timeout,
        "hijack_limit": gpu.hijack_limit,
        "privileged_tasks": gpu.privileged_tasks,
        "vendor": vendor.name,
        "grant": {
            "ids": list(vendor.grant.ids),
            "pci_vendor": f"0x{vendor.maker.id:04x}",
            "by_runtime": vendor.grant.by_runtime,
        },
        "nvidia_runtime": gpu.nvidia_runtime,
        "config_home": str(paths.CONFIG),
        "driver": gpu.driver,
        "cuda": gpu.cuda,
        # All folders with records of unavailable GPUs. The key keeps its name, since runtimes of
        # the revision before read it while a unit is refreshed.
        "cordons": [str(paths.EXTERNAL), str(paths.QUARANTINE), str(paths.CLOSED)],
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


def pattern(tasks: TaskFolders) -> str:
    """The extended regular expression by which the front finds what may be a task.

    It is for one string of JSON with the parts of a task's folder in their order. Cleaning the
    path may remove the text between them: `/srv/x/../ci//e55deab7/.` is `/srv/ci/e55deab7`.

    Raises:
        ValueError: these folders can't be.
    """
    parent = policy.task_folders({"parent": tasks.parent, "others": [*tasks.others]}).parent
    names = [name.replace(".", r"\.") for name in parent[1:-1].split("/")]
    between = r'([^"\]|\\.)*'
    return f'{f"/{between}".join(names)}/({between}/)?[0-9a-f]{{8}}["/]'


def _has_users() -> bool:
    """Whether a container may still have GPUs; True also if the store can't be read."""
    host = Host()
    try:
        holders = Store(str(paths.STORE)).read().holders
        return not all(host.is_gone(name, holder) for name, holder in holders.items())
    except (OSError, ValueError, Refused):
        return True


def _install_back_end() -> bool:
    """Install lib/gpu_runtime, compiled, behind one symlink; keep the previous version."""
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
        # Without a fixed seed, Python 3.10 writes the elements of a set in changing order.
        process.run(command, timeout=60, env={"PYTHONHASHSEED": "0"})
        folder = target / "__pycache__"
        made = {path.name: manifest.checksum(path) for path in sorted(folder.glob("*.pyc"))}
        files.ensure_file(target.parent / _COMPILED, json.dumps(made, indent=1) + "\n")
        # Before the switch, so that the next call finishes what a killed one left.
        kept = {version, Path(current).parent.name}
        for folder in paths.LIB.iterdir():
            if folder != paths.BACK_END and folder.name not in kept:
                files.ensure_absent(folder)
    return files.ensure_symlink(paths.BACK_END, f"{version}/gpu_runtime") or changed


def _compiled(target: Path) -> dict[str, str]:
    """Name and checksum of each compiled module at its compilation."""
    return json.loads(files.read_text(target.parent / _COMPILED) or "{}")


def _is_compiled(target: Path) -> bool:
    """Whether the compiled modules are unchanged.

    The interpreter uses them without comparing them with their sources.
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
