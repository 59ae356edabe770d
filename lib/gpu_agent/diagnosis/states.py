# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The state of the host's GPUs, driver and container toolkit, and the remedy for it. Pure.

The tables are in driver_states.py and toolkit_states.py.
"""

import dataclasses
import typing

from gpu_agent.diagnosis import driver_states as gpu_states
from gpu_agent.diagnosis import toolkit_states
from gpu_agent.diagnosis.facts import Facts, HostState, Kind

_REBOOTS: typing.Final = (
    "the charm reboots the machine once its builds have ended or drain-timeout has expired"
)
_REBOOTED: typing.Final = (
    "one reboot by the charm did not help, check sudo dmesg for nvidia and NVRM lines"
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A state of the host as status shows it: it keeps GPUs from tasks, or it is a note.

    Attributes:
        what: the state.
        remedy: what the operator does; may be empty in a note.
        code: of the state, in one of the tables.
        reboots: the state needs a reboot.
        passes: the charm drains the worker and reboots the machine by itself.
    """

    what: str
    remedy: str
    code: str
    reboots: bool = False
    passes: bool = False

    @property
    def is_of_an_option(self) -> bool:
        """Whether an option cannot be applied, and the toolkit that is here stays in use."""
        return self.code in toolkit_states.OF_AN_OPTION

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.what, self.remedy)))


def blocking(facts: Facts) -> Finding | None:
    """Return what keeps this machine's GPUs from tasks; None if nothing does."""
    return of_gpus(facts) or of_toolkit(facts)


def of_gpus(facts: Facts) -> Finding | None:
    """Return what is wrong with GPUs and driver; None if they can be used."""
    return _obstacle(state_of(facts, gpu_states.TABLE), facts)


def of_toolkit(facts: Facts) -> Finding | None:
    """Return what is wrong with NVIDIA's container toolkit; None if it can be used."""
    return _obstacle(state_of(facts, toolkit_states.TABLE), facts)


def notes(facts: Facts) -> tuple[Finding, ...]:
    """Return what the operator must know about GPUs that tasks can use."""
    if blocking(facts):
        return ()
    return tuple(
        Finding(*_texts(row, facts), row.code)
        for row in (*gpu_states.NOTES, *toolkit_states.NOTES)
        if row.applies(facts)
    )


def state_of(facts: Facts, table: tuple[HostState, ...]) -> HostState:
    """Return the row of a table for these facts: the first that applies."""
    return next(row for row in table if row.applies(facts))


def _obstacle(row: HostState, facts: Facts) -> Finding | None:
    if row.kind is not Kind.BLOCKS:
        return None
    what, remedy = _texts(row, facts)
    if row.reboots and facts.can_reboot and not facts.options.may_reboot:
        remedy += f", or juju config {facts.application} auto-reboot=driver"
    elif row.reboots and facts.can_reboot:
        # A reboot that did not help is not repeated.
        passes = not facts.has_rebooted
        remedy = _REBOOTS if passes else _REBOOTED
        return Finding(what, remedy, row.code, reboots=True, passes=passes)
    # With gpu-driver=auto the charm would do it, but it never changes a pre-installed driver.
    kept_out = facts.options.gpu_driver == "none" and not facts.driver.is_anothers
    if row.needs_driver_option and kept_out:
        remedy += f", or juju config {facts.application} gpu-driver=auto"
    return Finding(what, remedy, row.code, reboots=row.reboots)


def _texts(row: HostState, facts: Facts) -> tuple[str, str]:
    values = facts.values
    return row.status.format(**values), row.remedy.format(**values)
