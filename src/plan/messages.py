# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The kinds of status lines that no CI system owns: code, level and text of each. Pure.

docs/reference/status.md has one entry for each code. A CI system has a table of its own, and so
have the states of driver and container toolkit in gpu_agent.diagnosis.
"""

import dataclasses
import enum
import typing


class Level(enum.Enum):
    """Juju's names for the status of a unit.

    The operator must act on Blocked. Waiting passes by itself, or when another unit or application
    has acted; its text has the remedy for a state that stays.
    """

    BLOCKED = "blocked"
    WAITING = "waiting"
    MAINTENANCE = "maintenance"
    ACTIVE = "active"


@dataclasses.dataclass(frozen=True)
class Line:
    """One candidate for the unit's status.

    Attributes:
        level: how bad it is; Juju shows the worst line of a unit.
        code: names the kind of line, such as `no-database`.
        text: what Juju shows.
        notes: the codes of the notes in brackets, in the order of the text.
    """

    level: Level
    code: str
    text: str
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of status line, or of a note in the brackets of a unit that is ready.

    Attributes:
        code: its name, which never changes.
        level: of a note, ACTIVE.
        what: the state, with values in braces; at most 120 characters with plausible values.
        remedy: what the operator does or looks at: commands, names, addresses; may be empty.
    """

    code: str
    level: Level
    what: str
    remedy: str = ""

    def text(self, **values: object) -> str:
        """Return the text with these values; a remedy that comes out empty is left out."""
        parts = self.what.format(**values), self.remedy.format(**values)
        return ": ".join(filter(None, parts))


class Kinds:
    """A table of kinds.

    Attributes:
        by_code: each kind by its code.
    """

    def __init__(self, *kinds: Kind) -> None:
        self.by_code: typing.Final = {kind.code: kind for kind in kinds}

    def text(self, code: str, **values: object) -> str:
        """Return the text of a kind with these values."""
        return self.by_code[code].text(**values)

    def line(self, code: str, **values: object) -> Line:
        """Return a line of a kind with these values."""
        kind = self.by_code[code]
        return Line(kind.level, code, kind.text(**values))


KINDS: typing.Final = Kinds(
    Kind("bad-option", Level.BLOCKED, "{text}"),
    Kind(
        "unknown-gpu-ids",
        Level.BLOCKED,
        "gpu-device-ids: no GPU {unknown} on this machine, which has GPU {have}",
        "juju config {application} gpu-device-ids=<ids from that list, or all>",
    ),
    Kind(
        "chosen-gpus-gone",
        Level.BLOCKED,
        "No GPU of gpu-device-ids is on this machine any more",
        "see sudo dmesg and lspci, or choose others: juju config {application} "
        "gpu-device-ids=<ids>; if cards were swapped, set it to all, then to the indexes again",
    ),
    Kind(
        "mig-without-devices",
        Level.BLOCKED,
        "MIG mode is on without MIG devices on GPU {gpus}",
        "create some (sudo nvidia-smi mig -i <GPU> -cgi <profiles> -C), or turn MIG mode off "
        "(sudo nvidia-smi -i <GPU> -mig 0)",
    ),
    Kind(
        "gpus-per-task-too-large",
        Level.BLOCKED,
        "gpus-per-task={wanted} is more than the {have} {nouns} that tasks may use here",
        "juju config {application} gpus-per-task={have}{more}",
    ),
    Kind(
        "all-gpus-unavailable",
        Level.BLOCKED,
        "All GPUs are unavailable ({gpus})",
        "{remedy}",
    ),
    Kind(
        "gpus-failed-together",
        Level.BLOCKED,
        "{out} of {all} GPUs failed within 5 min ({cause}); no more are quarantined for it",
        "check driver and host (sudo dmesg; journalctl -u gpu-ci-health). To quarantine the rest "
        "too: juju config {application} quarantine-limit-percent=100",
    ),
    Kind(
        "runc-missing",
        Level.BLOCKED,
        "This machine has no runc, by which containers with GPUs start",
        "install the package runc",
    ),
    Kind(
        "machine-taken",
        Level.BLOCKED,
        "This machine belongs to {owner}",
        "juju remove-unit {unit}, or {other}. If Juju has no {other} any more, run sudo rm -r "
        "{agent} on the machine",
    ),
    Kind(
        "machine-has-agent",
        Level.BLOCKED,
        "This machine belongs to gpu-ci-agent, the agent without Juju",
        "run sudo gpu-ci-agent remove on the machine, or juju remove-unit {unit}",
    ),
    Kind("step-failed", Level.BLOCKED, "{text}"),
    Kind("drain-queued", Level.WAITING, "Queued for {then}: {turn}"),
    Kind("machine-unreadable", Level.WAITING, "{text}"),
    Kind("step-retried", Level.WAITING, "{text}"),
    Kind(
        "draining",
        Level.MAINTENANCE,
        "Draining ({left}, {waited} of {timeout}), then {then}",
        "{builds}",
    ),
    Kind("paused", Level.MAINTENANCE, "Paused: {reason} ({left})"),
    Kind("removing", Level.MAINTENANCE, "Removing this unit"),
    Kind("ready", Level.ACTIVE, "{ready}"),
    Kind("gpus", Level.ACTIVE, "GPU: {count}x {vendor}"),
    Kind("gpus-cordoned", Level.ACTIVE, "{count} cordoned: {gpus}"),
    Kind("gpus-quarantined", Level.ACTIVE, "{count} quarantined: {gpus}"),
    Kind("gpus-external", Level.ACTIVE, "{count} in use outside CI: GPU {gpus}"),
    Kind("gpus-missing", Level.ACTIVE, "{count} missing: GPU {gpus}"),
    Kind("gpus-lost", Level.ACTIVE, "{count} lost: {addresses}"),
    Kind("self-test-passed", Level.ACTIVE, "{test} passed"),
    Kind("self-test-failed", Level.ACTIVE, "{test} failed", "{failure}"),
    Kind(
        "self-test-incomplete",
        Level.ACTIVE,
        "{test} incomplete (GPUs stay in use; tried again after 5 min)",
        "{failure}",
    ),
    Kind(
        "gpu-wait-capped",
        Level.ACTIVE,
        "gpu-wait-timeout limited to {longest} s",
        "{why}",
    ),
    Kind(
        "gpu-shared",
        Level.ACTIVE,
        "GPU {gpus} also given to tasks by {units}",
        "divide the cards (on the LXD host: scripts/lxd-gpu {application}), or set gpu-device-ids",
    ),
    Kind(
        "gpus-not-enabled",
        Level.ACTIVE,
        "{found} found, but enable-gpu=false",
        "juju config {application} enable-gpu=true",
    ),
    Kind(
        "gpu-health-disabled",
        Level.ACTIVE,
        "GPU health service is off (gpu-health=disabled)",
    ),
    Kind(
        "gpu-health-down",
        Level.ACTIVE,
        "GPU health service is not running",
        "see journalctl -u gpu-ci-health",
    ),
    Kind(
        "gpu-health-observes",
        Level.ACTIVE,
        "GPU health service quarantines no GPU (gpu-health=observe)",
    ),
    Kind(
        "gpu-metrics-port-taken",
        Level.ACTIVE,
        "no GPU metrics, as another program has port {port}",
        "stop that program, or set another gpu-metrics-port below 1024",
    ),
    Kind("driver-upgrade", Level.ACTIVE, "{text}"),
    Kind(
        "relation-idle",
        Level.ACTIVE,
        "relation {endpoint} to {other} does nothing {why}",
        "juju remove-relation {application}:{endpoint} {other}",
    ),
    Kind("data-refused", Level.ACTIVE, "refused {text}"),
)

text, line = KINDS.text, KINDS.line
