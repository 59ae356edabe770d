# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Applications without a charm: the lab plays them, with hooks written in Python."""

import importlib
from typing import Any, ClassVar

from tests.lab.juju.context import HookContext
from tests.lab.juju.server import call
from tests.lab.network import GATEWAY
from tests.lab.park import Park


class Hook:
    """A played unit's hook commands: the same commands, with the same rules, as charms have."""

    def __init__(self, context: HookContext, park: Park):
        self.context = context
        self.park = park
        self.event = context.event

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a hook command and return what it prints.

        Raises:
            ToolError: it is refused.
        """
        return call(self.context, tool, list(arguments), stdin).strip()


class PlayedApp:
    """Base of a played application: no charm, no machines.

    Attributes:
        endpoints, options, actions: as CharmMeta's.
    """

    endpoints: ClassVar[dict[str, dict[str, Any]]] = {}
    options: ClassVar[dict[str, dict[str, Any]]] = {}
    actions: ClassVar[dict[str, dict[str, Any]]] = {}

    def provision(self, park: Park) -> str:
        """Make what the unit needs before its first hook; the address that others see.

        Raises:
            LabError: it cannot be made.
        """
        return str(GATEWAY)

    def handle(self, hook: Hook, kind: str) -> None:
        """Handle an event (`relation-changed`, `install`, ...) of the unit.

        Raises:
            ToolError: a hook command was refused: the hook has failed.
        """


def load(path: str) -> PlayedApp:
    """The played application at `package.module:Class`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)()
