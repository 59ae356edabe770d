# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run Docker beside Concourse, whose containerd uses the distribution's socket.

A dockerd without the argument for a containerd starts its own (moby 20.10 to 29,
cmd/dockerd/daemon.go). So this module removes that argument from Docker's unit, and masks the
distribution's containerd, which the unit would start.
"""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class ContainerdUnit:
    """Docker's unit with a containerd of its own.

    Attributes:
        record: file that says that the drop-in is the charm's, and whether the charm masked the
            distribution's service.
        running: the folder of running containers of containerd, with one folder for each
            namespace.
    """

    record: Path = Path("/var/lib/gpu-ci/engines.json")
    running: Path = Path("/run/containerd/io.containerd.runtime.v2.task")

    def ensure(self) -> bool:
        """Make Docker use its own containerd; return True if anything was changed.

        Raises:
            EngineError: running containers would be lost.
            machine.process.CommandError: systemd refuses.
        """
        found = services.show(UNIT, "LoadState", "ActiveState", "ExecStart")
        started = _arguments(found["ExecStart"])
        kept = [word for word in started if word.partition("=")[2] != _SOCKET]
        if found["LoadState"] != "loaded" or kept == started:
            return False
        users = self._users()
        if users:
            raise EngineError(
                f"containers of {' and '.join(users)} run under the distribution's containerd, "
                "which Concourse's replaces: stop them, then change any option of this "
                "application to continue"
            )
        files.ensure_directory(self.record.parent)
        masked = services.show(_OTHERS, "LoadState")["LoadState"] == "masked"
        if not self.record.exists():
            files.ensure_file(self.record, json.dumps({"masked": not masked}) + "\n")
        line = " ".join(_quoted(word) for word in kept)
        services.ensure_drop_in(UNIT, _DROP_IN, f"[Service]\nExecStart=\nExecStart={line}\n")
        services.ensure_masked(_OTHERS)
        if found["ActiveState"] == "active":
            services.ensure_running(UNIT, restart=True)
        return True

    def remove(self) -> bool:
        """Restore the package's setup from Docker's next start on; return True if changed."""
        noted = files.read_text(self.record)
        if noted is None:  # it is written before all other changes
            return False
        services.remove_drop_in(UNIT, _DROP_IN)
        if json.loads(noted)["masked"]:
            services.unmask(_OTHERS)
        return files.ensure_absent(self.record)

    def _users(self) -> list[str]:
        """Return the owners of containers under that containerd, except for Concourse."""
        names = {"moby": "Docker", "k8s.io": "Kubernetes"}
        found = [path for path in files.entries(self.running) if path.name != "concourse"]
        return [names.get(path.name, path.name) for path in found if files.entries(path)]


def _arguments(shown: str) -> list[str]:
    """Return the command in systemd's `{ path=... ; argv[]=... ; ... }` of an ExecStart."""
    return shlex.split(shown.partition("argv[]=")[2].partition(" ; ")[0])


def _quoted(word: str) -> str:
    # A variable of the unit stays a variable: systemd splits `$NAME` into words.
    return word if word.startswith("$") else shlex.quote(word)
