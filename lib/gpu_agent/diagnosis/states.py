# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The state that the host's GPUs, driver and container toolkit are in, and its remedy. Pure.

The tables are in driver_states.py and toolkit_states.py beside this module, which reads them.
"""

import dataclasses
import typing

from gpu_agent.diagnosis import driver_states as gpu_states
from gpu_agent.diagnosis import toolkit_states
from gpu_agent.diagnosis.facts import Facts, HostState, Kind

_REBOOTED: typing.Final = "the charm has rebooted once for it: see sudo dmesg for nvidia and NVRM"


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Why no task can get a GPU here. Written as one text, it is what status says.

    Attributes:
        state: name of the state, a row of the tables.
        reboots: a reboot is what is needed.
        passes: the charm itself makes it, as soon as no job runs.
    """

    what: str
    remedy: str
    state: str = ""
    reboots: bool = False
    passes: bool = False

    @property
    def is_of_an_option(self) -> bool:
        """Whether an option can't be followed, and what is here works on as it is."""
        return self.state.startswith("chosen toolkit")

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def blocking(facts: Facts) -> Obstacle | None:
    """What keeps this machine's GPUs from tasks; None where nothing does."""
    return of_gpus(facts) or of_toolkit(facts)


def of_gpus(facts: Facts) -> Obstacle | None:
    """What is wrong with GPUs and driver; None where they can be used."""
    return _obstacle(state_of(facts, gpu_states.TABLE), facts)


def of_toolkit(facts: Facts) -> Obstacle | None:
    """What is wrong with NVIDIA's container toolkit; None where nothing is, or none is needed."""
    return _obstacle(state_of(facts, toolkit_states.TABLE), facts)


def notes(facts: Facts) -> tuple[str, ...]:
    """What the operator must know though tasks get their GPUs: for the brackets of status."""
    if blocking(facts):
        return ()
    return tuple(
        ": ".join(filter(None, _texts(row, facts)))
        for row in (*gpu_states.NOTES, *toolkit_states.NOTES)
        if row.applies(facts)
    )


def state_of(facts: Facts, table: tuple[HostState, ...]) -> HostState:
    """The row of a table that these facts are in: the first that applies."""
    return next(row for row in table if row.applies(facts))


def _obstacle(row: HostState, facts: Facts) -> Obstacle | None:
    if row.kind is not Kind.BLOCKS:
        return None
    what, remedy = _texts(row, facts)
    if row.reboots and facts.can_reboot and not facts.options.auto_reboot:
        remedy += f", or juju config {facts.application} auto-reboot=true"
    elif row.reboots and facts.can_reboot:
        # One that did not help is no reason for another, and another, and another.
        passes = not facts.has_rebooted
        remedy = "the charm reboots when no job runs" if passes else _REBOOTED
        return Obstacle(what, remedy, row.name, reboots=True, passes=passes)
    # The charm would do it, were it let; a driver that somebody else installed it never touches.
    kept_out = facts.options.gpu_driver == "none" and not facts.driver.is_anothers
    if row.needs_driver_option and kept_out:
        remedy += f", or juju config {facts.application} gpu-driver=auto"
    return Obstacle(what, remedy, row.name, reboots=row.reboots)


def _texts(row: HostState, facts: Facts) -> tuple[str, str]:
    words = facts.words
    return row.status.format(**words), row.remedy.format(**words)
