# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An application without machines that records its hooks, to test the lab's Juju."""

from collections.abc import Callable
from typing import Any, ClassVar

from tests.lab import shellcharm
from tests.lab.juju.agent import hook_name
from tests.lab.juju.model import Model
from tests.lab.juju.played import Hook, PlayedApp

PATH = "tests.lab.recorder:Recorder"


class Recorder(PlayedApp):
    """The shell charm's endpoints, options and actions; its hooks do what a test says."""

    endpoints: ClassVar[dict[str, dict[str, Any]]] = {
        "server": {"role": "provides", "interface": "chat", "limit": None},
        "client": {"role": "requires", "interface": "chat", "limit": 1},
        "peers": {"role": "peers", "interface": "shell_peers", "limit": None},
    }
    options: ClassVar[dict[str, dict[str, Any]]] = shellcharm.CONFIG["options"]
    actions: ClassVar[dict[str, dict[str, Any]]] = shellcharm.ACTIONS
    # The hooks that each unit has run, and the function for its next update-status.
    hooks: ClassVar[dict[str, list[str]]] = {}
    script: ClassVar[dict[str, Callable[[Hook], None]]] = {}

    def handle(self, hook: Hook, kind: str) -> None:
        """Write the hook down; run the test's own part."""
        event, unit = hook.event, hook.context.unit
        remote = event["remote_unit"] or event["remote_app"]
        departing = f"departing {event['departing']}" if event["departing"] else ""
        words = (hook_name(hook.context.store, event), remote, departing)
        self.hooks.setdefault(unit, []).append(" ".join(word for word in words if word))
        if kind in ("update-status", "action") and unit in self.script:
            self.script[unit](hook)


def in_hook(model: Model, unit: str, script: Callable[[Hook], None]) -> None:
    """Run a function as the unit's update-status."""
    Recorder.script[unit] = script
    model.controller.fire(unit, "update-status")
    del Recorder.script[unit]


def hooks_since(unit: str) -> list[str]:
    """The hooks that have run on the unit since this was last asked."""
    return Recorder.hooks.pop(unit, [])
