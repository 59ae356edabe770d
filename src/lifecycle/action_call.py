# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One call of an action, and its failure, for the actions of the charm and of CI systems."""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.inventory import Inventory
from lifecycle.drain import Drainer

Results = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an action, with its access to Juju.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        params: the parameters, as actions.yaml declares them.
        log: shows the operator a line of progress.
        options: the application's options as Juju has them, unchecked.
        drainer: drains and pauses the unit.
        gpus: looks at the GPUs of this machine; takes the option gpu-vendor.
    """

    unit: str
    params: collections.abc.Mapping[str, typing.Any]
    log: collections.abc.Callable[[str], None]
    options: collections.abc.Mapping[str, object]
    drainer: Drainer
    gpus: collections.abc.Callable[[str], Inventory]

    @property
    def for_program(self) -> bool:
        """Whether the results are for a program."""
        return self.params.get("format") == "json"

    @property
    def reason(self) -> str:
        """The operator's reason; actions.yaml has the default."""
        return self.params.get("reason", "no reason given")

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]


class ActionError(Exception):
    """An action failed; the text says why and what to do instead.

    Attributes:
        results: what the action reports although it failed.
    """

    def __init__(self, text: str, results: Results | None = None) -> None:
        super().__init__(text)
        self.results = results or {}


Action = collections.abc.Callable[[Call], Results]
