# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reset one NVIDIA GPU in a systemd service of its own.

The reset does not run in a hook's process, so one that hangs in the driver is left alone. The GPU
health service and the persistence mode have the GPU open, and the driver would refuse the reset
(NVIDIA/NVSentinel#1690). systemd stops both before and restores them after the reset, even if the
hook or the reset is killed.
"""

import pathlib
import re
import shlex
import typing

from machine import files, process
from machine import polling as waiting
from machine import systemd as services
from machine import systemd_transient as transient

UNIT: typing.Final = "gpu-ci-reset.service"
LOG: typing.Final = pathlib.Path("/var/log/gpu-ci/reset.log")

_SMI: typing.Final = "/usr/bin/nvidia-smi"
# nvidia-smi's output before and after the reset is not the reason of a failed reset.
_NOWHERE: typing.Final = "/dev/null 2>&1"
_SYSTEMCTL: typing.Final = "/usr/bin/systemctl"
# As in gpu_agent.availability.quarantine; no character has a meaning to a shell or to systemd.
_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:.-]*")
# In seconds. A reset takes some seconds, on a machine of eight joined GPUs more.
_LIMIT: typing.Final = 60
_PATIENCE: typing.Final = 100
_POLL: typing.Final = 0.5
_MOST_WORDS: typing.Final = 300


def reset(uuid: str, *, persistent: bool, beside: str = "") -> str:
    """Reset an idle GPU.

    Args:
        uuid: its id.
        persistent: whether to switch its persistence mode on again.
        beside: a service that has it open, which is stopped meanwhile; empty: none.

    Returns:
        Why that failed, one line; empty if it was reset.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is not the id of a GPU")
    before, after = _around(uuid, persistent=persistent, beside=beside)
    properties = {
        "RuntimeMaxSec": str(_LIMIT),
        "TimeoutStopSec": "10",
        # Not truncated: commands after the reset would erase its output.
        "StandardOutput": f"append:{LOG}",
        "StandardError": f"append:{LOG}",
    }
    if after:
        properties["ExecStopPost"] = f"-/bin/sh -c {shlex.quote('; '.join(after))}"
    script = "; ".join([*before, f"exec {_SMI} --gpu-reset -i {uuid}"])
    files.ensure_directory(LOG.parent)
    files.ensure_absent(LOG)
    try:
        transient.start(
            UNIT, ["/bin/sh", "-c", script], description=f"Reset of {uuid}", properties=properties
        )
        return _outcome()
    except process.CommandError as error:
        return str(error)


def is_running() -> bool:
    """Return whether a reset runs now, for example after its hook was killed, or it hangs."""
    return not _has_ended()


def remove() -> bool:
    """Remove its log. Return True if there was one."""
    return files.ensure_absent(LOG)


def _outcome() -> str:
    """Return why the reset that runs failed, after its end; empty if it did not fail."""
    if not waiting.until(_has_ended, _PATIENCE, _POLL):
        return "it does not end"
    result = services.show(UNIT, "Result", "ExecMainStatus")
    services.forget_failure(UNIT)
    # systemd forgets a service that succeeded, and then reports status 0.
    if result["Result"] in ("", "success") and result["ExecMainStatus"] in ("", "0"):
        return ""
    return _words() or f"it ended with {result['Result']} {result['ExecMainStatus']}"


def _around(uuid: str, *, persistent: bool, beside: str) -> tuple[list[str], list[str]]:
    """The shell commands before the reset, and those after it, which always run."""
    stopped = bool(beside and services.main_pid(beside))
    before = [f"{_SYSTEMCTL} stop {beside}"] if stopped else []
    after = [f"{_SMI} -pm 1 -i {uuid} >{_NOWHERE}"] if persistent else []
    after += [f"{_SYSTEMCTL} start --no-block {beside}"] if stopped else []
    return [*before, f"{_SMI} -pm 0 -i {uuid} >{_NOWHERE}"], after


def _has_ended() -> bool:
    return services.show(UNIT, "ActiveState")["ActiveState"] in ("", "inactive", "failed")


def _words() -> str:
    """Return the output of the reset."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    lines = (line.strip() for line in text.splitlines())
    said = " / ".join(line for line in lines if line and line != "All done.")
    return "".join(letter if letter.isprintable() else " " for letter in said)[:_MOST_WORDS]
