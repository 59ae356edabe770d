# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An application without machines that records its hooks, to test the lab's Juju."""

from collections.abc import Callable
from typing import Any, ClassVar

from tests.lab import shellcharm
from tests.lab.juju.agent import hook_name
from tests.lab.juju.context import ToolError
from tests.lab.juju.model import Model
from tests.lab.juju.played import Hook, PlayedApp

PATH = "tests.lab.recorder:Recorder"


class Recorder(PlayedApp):
    """The shell charm's endpoints, options and actions; its hooks do what a test says."""

    endpoints: ClassVar[dict[str, dict[str, Any]]] = {
        "server": {"role": "provides", "interface": "chat"},
        "client": {"role": "requires", "interface": "chat"},
        "peers": {"role": "peers", "interface": "shell_peers"},
    }
    options: ClassVar[dict[str, dict[str, Any]]] = shellcharm.CONFIG["options"]
    actions: ClassVar[dict[str, dict[str, Any]]] = shellcharm.ACTIONS
    # Each hook that has run, with its unit, and the function for a unit's next update-status.
    hooks: ClassVar[list[tuple[str, str]]] = []
    script: ClassVar[dict[str, Callable[[Hook], None]]] = {}

    def handle(self, hook: Hook, kind: str) -> None:
        """Write the hook down; run the test's own part."""
        event, unit = hook.event, hook.context.unit
        remote = event["remote_unit"] or event["remote_app"]
        departing = f"departing {event['departing']}" if event["departing"] else ""
        words = (hook_name(hook.context.store, event), remote, departing)
        self.hooks.append((unit, " ".join(word for word in words if word)))
        if kind in ("update-status", "action") and unit in self.script:
            self.script[unit](hook)


def in_hook(model: Model, unit: str, script: Callable[[Hook], None]) -> None:
    """Run a function as the unit's update-status."""
    Recorder.script[unit] = script
    model.controller.fire(unit, "update-status")
    del Recorder.script[unit]


def said(model: Model, unit: str, command: str) -> str:
    """Return what a hook command prints in the unit's update-status, or why it is refused."""
    found: list[str] = []

    def call(hook: Hook) -> None:
        try:
            found.append(hook(*command.split()))
        except ToolError as error:
            found.append(f"ERROR {error}")

    in_hook(model, unit, call)
    return found[0]


def hooks_since(unit: str) -> list[str]:
    """Return the hooks that have run on the unit since this was last asked."""
    own = [hook for who, hook in Recorder.hooks if who == unit]
    Recorder.hooks[:] = [(who, hook) for who, hook in Recorder.hooks if who != unit]
    return own
