# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Docker beside Concourse, whose containerd has the distribution's socket: each with its own.

A dockerd that is not told of a containerd starts one of its own (moby 20.10 to 29,
cmd/dockerd/daemon.go). So its unit loses that argument, and the distribution's containerd, which
it would start, is masked.
"""

import json
import shlex
from pathlib import Path
from typing import Final

from gpu_agent.engines.docker.daemon_json import UNIT
from gpu_agent.engines.engine import EngineError
from machine import files
from machine import systemd as services

_DROP_IN: Final = "gpu-ci.conf"
_OTHERS: Final = "containerd.service"
_SOCKET: Final = "/run/containerd/containerd.sock"
# Where a containerd keeps what runs, a folder for each of its users.
_RUNNING: Final = Path("/run/containerd/io.containerd.runtime.v2.task")
# That the drop-in is ours, and whether it is we who masked the distribution's service.
_RECORD: Final = Path("/var/lib/gpu-ci/engines.json")


def ensure() -> bool:
    """Have Docker use a containerd of its own; True if anything was changed.

    Raises:
        EngineError: containers run that would be lost by that.
        machine.process.CommandError: systemd refuses.
    """
    found = services.show(UNIT, "LoadState", "ActiveState", "ExecStart")
    started = _arguments(found["ExecStart"])
    kept = [word for word in started if word.partition("=")[2] != _SOCKET]
    if found["LoadState"] != "loaded" or kept == started:
        return False
    users = _users()
    if users:
        raise EngineError(
            f"containers of {' and '.join(users)} run under the distribution's containerd, whose "
            "place Concourse's takes: stop them, then anything that changes this unit's "
            "configuration goes on from here"
        )
    files.ensure_directory(_RECORD.parent)
    masked = services.show(_OTHERS, "LoadState")["LoadState"] == "masked"
    if not _RECORD.exists():
        files.ensure_file(_RECORD, json.dumps({"masked": not masked}) + "\n")
    line = " ".join(_quoted(word) for word in kept)
    services.ensure_drop_in(UNIT, _DROP_IN, f"[Service]\nExecStart=\nExecStart={line}\n")
    services.ensure_masked(_OTHERS)
    if found["ActiveState"] == "active":
        services.ensure_running(UNIT, restart=True)
    return True


def remove() -> bool:
    """Have Docker as its package has it, from its next start on; True if it was not so."""
    noted = files.read_text(_RECORD)
    if noted is None:  # it comes before all else
        return False
    services.remove_drop_in(UNIT, _DROP_IN)
    if json.loads(noted)["masked"]:
        services.unmask(_OTHERS)
    return files.ensure_absent(_RECORD)


def _arguments(shown: str) -> list[str]:
    """The command of an ExecStart as systemd shows it: `{ path=... ; argv[]=... ; ... }`."""
    return shlex.split(shown.partition("argv[]=")[2].partition(" ; ")[0])


def _quoted(word: str) -> str:
    # A variable of the unit's own is to be one: systemd takes `$NAME` apart into words.
    return word if word.startswith("$") else shlex.quote(word)


def _users() -> list[str]:
    """Whose containers run under the containerd at that place, but for Concourse's."""
    names = {"moby": "Docker", "k8s.io": "Kubernetes"}
    found = [path for path in files.entries(_RUNNING) if path.name != "concourse"]
    return [names.get(path.name, path.name) for path in found if files.entries(path)]
