# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CI systems that there are: one line each in ALL."""

import collections.abc
import dataclasses
import types
import typing

from ci import none
from ci.concourse import concourse
from ci.concourse.checks import launcher, worker
from ci.runners import options as runner_options
from ci.runners import runners
from ci.system import CiSystem, Say
from gpu_selftest.check import Check
from lifecycle.records import Records
from options import readers, table
from options.declaration import CiOptions, Group, Option
from options.part import Part
from options.values import OptionError
from relations import juju


@dataclasses.dataclass(frozen=True)
class Room:
    """A CI system that a unit can have.

    Attributes:
        options: its options.
        make: makes it for one hook.
        checks: its checks of the self-test, which a program of the CI system makes.
    """

    options: CiOptions
    make: collections.abc.Callable[[juju.Charm, Say, Records], CiSystem]
    checks: tuple[Check, ...] = ()


ALL: typing.Final = (
    Room(concourse.OPTIONS, concourse.Concourse, (launcher.CHECK, *worker.CHECKS)),
    Room(runner_options.GITEA, runners.gitea_runners),
    Room(runner_options.GITHUB, runners.github_runners),
    Room(none.OPTIONS, none.NoCiSystem),
)
"""The first one is the default."""

BY_NAME: typing.Final = types.MappingProxyType({one.options.name: one for one in ALL})

CI_SYSTEM: typing.Final = Option(
    "ci-system",
    default=ALL[0].options.name,
    text=(
        "CI system of this unit: "
        + "; ".join(f"`{one.options.name}`: {one.options.text}" for one in ALL)
        + ". If it changes, the charm removes the previous CI system from the machine; running "
        "builds have up to five minutes to end."
    ),
    group=Group.EVERYDAY,
    part=Part.UNIT,
    field="ci_system",
    values=tuple(BY_NAME),
)

TABLE: typing.Final = tuple(
    sorted(
        # Two CI systems may have an option in common.
        dict.fromkeys(
            (CI_SYSTEM, *table.OPTIONS, *(one for room in ALL for one in room.options.declared))
        ),
        key=lambda option: [*Group].index(option.group),
    )
)
"""All options by group, and within a group those of the charm before those of the CI systems."""


def chosen(raw: table.Raw) -> tuple[Room, tuple[OptionError, ...]]:
    """Return the CI system that the options choose.

    Args:
        raw: option name (with hyphens) to value.

    Returns:
        The CI system, and why the options cannot be used. If they cannot, it is the default one,
        which then leaves everything as it is.
    """
    given = {CI_SYSTEM.name: CI_SYSTEM.default, **raw}
    try:
        room = BY_NAME[CI_SYSTEM.value(given)]
        mode = readers.text(given, "deployment-mode")
        if mode in table.MODES and mode not in room.options.modes:
            modes = " or ".join(room.options.modes)
            remedy = f"is not for ci-system={room.options.name}: use {modes}"
            raise OptionError("deployment-mode", mode, remedy)
    except OptionError as error:
        return ALL[0], (error,)
    return room, ()
