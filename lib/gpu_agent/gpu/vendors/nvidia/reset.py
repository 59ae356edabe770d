# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A reset of one GPU of NVIDIA's, as a systemd service of its own.

It is no process of a hook's: one that hangs in the driver is left alone. What has the GPU open
beside it, the watch and the persistence mode, is taken out of its way and put back by systemd,
whatever ends the hook or the reset (NVIDIA/NVSentinel#1690: else it is refused as in use).
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
# What nvidia-smi says beside the reset is not what that failed of.
_NOWHERE: typing.Final = "/dev/null 2>&1"
_SYSTEMCTL: typing.Final = "/usr/bin/systemctl"
# As in gpu_agent.availability.quarantine; nothing of it means anything to a shell or to systemd.
_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:.-]*")
# In seconds. A reset takes some seconds, on a machine of eight joined GPUs more.
_LIMIT: typing.Final = 60
_PATIENCE: typing.Final = 100
_POLL: typing.Final = 0.5
_MOST_WORDS: typing.Final = 300


def reset(uuid: str, *, persistent: bool, beside: str = "") -> str:
    """Reset a GPU that nobody uses.

    Args:
        uuid: its id.
        persistent: whether its persistence mode is on, to be on again.
        beside: a service that has it open, which is stopped meanwhile; empty: none.

    Returns:
        Why that failed, one line; empty if it was reset.

    Raises:
        ValueError: `uuid` can't be a GPU's.
    """
    if not _ID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is no GPU's id")
    before, after = _around(uuid, persistent=persistent, beside=beside)
    properties = {
        "RuntimeMaxSec": str(_LIMIT),
        "TimeoutStopSec": "10",
        # Not truncated: what comes after the reset would take its words away.
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
    """Whether one runs now, as where the hook that began it was killed, or it hangs."""
    return not _has_ended()


def remove() -> bool:
    """Take its log away. Return True if there was one."""
    return files.ensure_absent(LOG)


def _outcome() -> str:
    """Why the reset that runs failed, once it has ended; empty if it did not fail."""
    if not waiting.until(_has_ended, _PATIENCE, _POLL):
        return "it does not end"
    result = services.show(UNIT, "Result", "ExecMainStatus")
    services.forget_failure(UNIT)
    # Of a service that went well systemd knows nothing any more, and its status reads 0.
    if result["Result"] in ("", "success") and result["ExecMainStatus"] in ("", "0"):
        return ""
    return _words() or f"it ended with {result['Result']} {result['ExecMainStatus']}"


def _around(uuid: str, *, persistent: bool, beside: str) -> tuple[list[str], list[str]]:
    """What the shell does before the reset, and what it does whatever came of it."""
    stopped = bool(beside and services.main_pid(beside))
    before = [f"{_SYSTEMCTL} stop {beside}"] if stopped else []
    after = [f"{_SMI} -pm 1 -i {uuid} >{_NOWHERE}"] if persistent else []
    after += [f"{_SYSTEMCTL} start --no-block {beside}"] if stopped else []
    return [*before, f"{_SMI} -pm 0 -i {uuid} >{_NOWHERE}"], after


def _has_ended() -> bool:
    return services.show(UNIT, "ActiveState")["ActiveState"] in ("", "inactive", "failed")


def _words() -> str:
    """What the reset has said."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    lines = (line.strip() for line in text.splitlines())
    said = " / ".join(line for line in lines if line and line != "All done.")
    return "".join(letter if letter.isprintable() else " " for letter in said)[:_MOST_WORDS]
