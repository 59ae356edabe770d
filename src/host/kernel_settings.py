# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What this machine is set to for work on GPUs; each setting is undone as it was found.

AMD's and Intel's nodes need nothing: udev's own rules give them to the group `render`, and the
wrapper puts tasks into the group of each node that it hands out.
"""

import json
import logging
import os
import pathlib
import re
import typing

from gpu_agent import paths
from machine import files, process
from machine import systemd as services

RECORD: typing.Final = paths.STATE / "host-settings.json"

# The most memory mappings that a process may have. The kernel's 65530 is too few for programs that
# map a model of many files; this is what Ubuntu has since 24.04 (procps, 10-map-count.conf).
MAPPINGS: typing.Final = 1_048_576
_MAPPINGS_LIVE: typing.Final = pathlib.Path("/proc/sys/vm/max_map_count")
_MAPPINGS_FILE: typing.Final = pathlib.Path("/etc/sysctl.d/60-gpu-ci.conf")
_MAPPINGS_CONTENT: typing.Final = f"""\
# By the charm gpu-ci-worker: programs of CI tasks map large models.
vm.max_map_count = {MAPPINGS}
"""

# In decimal; what nvidia.ko and the programs that make its nodes go by.
_PARAMETERS: typing.Final = pathlib.Path("/proc/driver/nvidia/params")
# modprobe reads the folder in the order of names, and the last word holds.
_MODE_FILE: typing.Final = pathlib.Path("/etc/modprobe.d/zz-gpu-ci-nvidia.conf")
_MODE_CONTENT: typing.Final = """\
# By the charm gpu-ci-worker: tasks that are not root open the GPUs' device nodes.
options nvidia NVreg_DeviceFileMode=0666
"""
_READ_AND_WRITE: typing.Final = 0o006

_DAEMON: typing.Final = "nvidia-persistenced.service"
_DROP_IN: typing.Final = "gpu-ci.conf"
# With this Ubuntu starts it, so that it holds no GPU.
_IDLE: typing.Final = "--no-persistence-mode"
_NODES: typing.Final = "nvidia[0-9]*"

_CONTAINER: typing.Final = pathlib.Path("/run/systemd/container")
_PROC: typing.Final = pathlib.Path("/proc")
_DEV: typing.Final = pathlib.Path("/dev")

_log = logging.getLogger(__name__)


class _Record(typing.TypedDict, total=False):
    """What was found before anything was changed; what is not in it was not changed.

    Attributes:
        mappings: the most that a process could have.
        mode: there for as long as the mode of NVIDIA's nodes is ours to say.
        daemon: systemd's ActiveState and UnitFileState of NVIDIA's persistence daemon.
    """

    mappings: int
    mode: bool
    daemon: tuple[str, str]


def ensure(nvidia: bool) -> bool:
    """Have this machine set for work on GPUs. Return True if anything had to be changed.

    Settings of a container's host are not changed.

    Args:
        nvidia: whether its GPUs are NVIDIA's, whose driver has settings of its own; else those
            stay as they are, since a GPU that is gone may come back.

    Raises:
        machine.process.CommandError: the kernel or systemd does not take one.
        OSError: something can't be looked at.
    """
    if _CONTAINER.exists():
        return False
    record = _read()
    changed = _ensure_mappings(record)
    if not nvidia:
        return changed
    changed |= _ensure_mode(record)
    return _ensure_persistence(record) or changed


def remove() -> bool:
    """Undo the charm's settings that are unchanged. Return True if there was anything.

    To be called before the driver's packages go, whose service may have to be set back.

    Raises:
        machine.process.CommandError: the kernel or systemd does not take one back.
        OSError: something can't be looked at.
    """
    record = _read()
    changed = _remove_nvidias(record)
    if "mappings" in record:
        files.ensure_absent(_MAPPINGS_FILE)
        if _can_go_back(record["mappings"]):
            _set_mappings(record["mappings"])
        del record["mappings"]
        _write(record)
        changed = True
    return changed


def _ensure_mappings(record: _Record) -> bool:
    now = _mappings()
    low = now < MAPPINGS and os.access(_MAPPINGS_LIVE, os.W_OK)
    if "mappings" not in record:
        if not low:
            return False
        record["mappings"] = now
        _write(record)
    changed = files.ensure_file(_MAPPINGS_FILE, _MAPPINGS_CONTENT)
    if low:
        _set_mappings(MAPPINGS)
    return changed or low


def _mappings() -> int:
    return int(_MAPPINGS_LIVE.read_text())


def _set_mappings(most: int) -> None:
    process.run(["/usr/sbin/sysctl", "-q", "-w", f"vm.max_map_count={most}"], timeout=10)


def _can_go_back(before: int) -> bool:
    """Whether the limit is still ours, and no process has come to need it."""
    if _CONTAINER.exists() or not os.access(_MAPPINGS_LIVE, os.W_OK) or _mappings() != MAPPINGS:
        return False
    return not any(_mapped(folder) > before for folder in _PROC.glob("[0-9]*"))


def _mapped(folder: pathlib.Path) -> int:
    """How many mappings a process has; none if it has ended."""
    try:
        with (folder / "maps").open("rb") as lines:
            return sum(1 for _ in lines)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _ensure_mode(record: _Record) -> bool:
    """Have NVIDIA's nodes open to all from the next start of its module on."""
    if "mode" not in record:
        said = files.read_text(_PARAMETERS) or ""
        mode = re.search(r"^DeviceFileMode: ([0-9]+)$", said, re.MULTILINE)
        if not mode or int(mode.group(1)) & _READ_AND_WRITE == _READ_AND_WRITE:
            return False
        record["mode"] = True
        _write(record)
    return files.ensure_file(_MODE_FILE, _MODE_CONTENT)


def _ensure_persistence(record: _Record) -> bool:
    """Have the driver stay loaded between two tasks, now and after a reboot.

    Where it can't be had, tasks only begin more slowly, and the self-test warns.
    """
    state = services.show(_DAEMON, "LoadState", "ActiveState", "UnitFileState", "FragmentPath")
    if state["LoadState"] != "loaded" or not any(_DEV.glob(_NODES)):
        return False
    command = _without_idle(pathlib.Path(state["FragmentPath"]))
    if "daemon" not in record:
        off = state["ActiveState"] not in services.RUNNING or state["UnitFileState"] == "disabled"
        if not off and not command:
            return False
        record["daemon"] = state["ActiveState"], state["UnitFileState"]
        _write(record)
    try:
        return _have_daemon(command, enable=state["UnitFileState"] == "disabled")
    except process.CommandError as error:
        _log.warning("NVIDIA's persistence daemon can't be had: %s", error)
        return True


def _without_idle(unit: pathlib.Path) -> str:
    """How its package would start the daemon, if that holds no GPU, so that it does; or empty."""
    starts = re.findall(r"^ExecStart=(\S.*)$", files.read_text(unit) or "", re.MULTILINE)
    words: list[str] = starts[-1].split() if starts else []
    return " ".join(word for word in words if word != _IDLE) if _IDLE in words else ""


def _have_daemon(command: str, *, enable: bool) -> bool:
    if command:
        content = f"[Service]\nExecStart=\nExecStart={command}\n"
        changed = services.ensure_drop_in(_DAEMON, _DROP_IN, content)
    else:
        changed = services.remove_drop_in(_DAEMON, _DROP_IN)
    if enable:
        changed |= services.ensure_enabled(_DAEMON)
    # As it was started, which is not ours where an operator's drop-in says otherwise.
    stale = _is_idle() and _IDLE not in services.show(_DAEMON, "ExecStart")["ExecStart"]
    return services.ensure_running(_DAEMON, restart=stale) or changed


def _is_idle() -> bool:
    """Whether the daemon runs and holds no GPU."""
    pid = services.main_pid(_DAEMON)
    said = files.read_text(_PROC / str(pid) / "cmdline") if pid else None
    return _IDLE in (said or "").split("\0")


def _remove_nvidias(record: _Record) -> bool:
    changed = "mode" in record or "daemon" in record
    if "mode" in record:
        files.ensure_absent(_MODE_FILE)
        del record["mode"]
        _write(record)
    if "daemon" in record:
        services.remove_drop_in(_DAEMON, _DROP_IN)
        try:
            _set_daemon_back(*record["daemon"])
        except process.CommandError as error:
            _log.warning("NVIDIA's persistence daemon can't be set back: %s", error)
            if services.show(_DAEMON, "LoadState")["LoadState"] == "loaded":
                return changed  # The next hook tries again, as long as there is one.
        del record["daemon"]
        _write(record)
    return changed


def _set_daemon_back(active: str, enabled: str) -> None:
    if enabled == "disabled":
        services.ensure_not_enabled(_DAEMON)
    if active not in services.RUNNING:
        services.ensure_stopped(_DAEMON)
        return
    state = services.show(_DAEMON, "ActiveState", "ExecStart")
    held = services.main_pid(_DAEMON) and not _is_idle()
    # It failed where an earlier try could not start it.
    if state["ActiveState"] == "failed" or (held and _IDLE in state["ExecStart"]):
        services.ensure_running(_DAEMON, restart=True)


def _read() -> _Record:
    text = files.read_text(RECORD)
    return json.loads(text) if text else {}


def _write(record: _Record) -> None:
    if record:
        files.ensure_directory(RECORD.parent)
        files.ensure_file(RECORD, json.dumps(record, indent=1) + "\n")
    else:
        files.ensure_absent(RECORD)
