# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What can keep a part of a unit from its work: data; plan/messages.py has the sentences."""

import dataclasses
import enum


class Reason(enum.Enum):
    """Why; the values that its sentence needs are named in plan/messages.py."""

    BAD_OPTION = enum.auto()
    RESOURCE_UNKNOWN = enum.auto()
    NO_CHECKSUM = enum.auto()
    GPU_OBSTACLE = enum.auto()
    GPU_OBSTACLE_PASSES = enum.auto()
    UNKNOWN_GPU_IDS = enum.auto()
    CHOSEN_GPUS_GONE = enum.auto()
    MIG_WITHOUT_DEVICES = enum.auto()
    TOO_FEW_GPUS = enum.auto()
    ALL_QUARANTINED = enum.auto()
    RIVAL = enum.auto()
    FOREIGN_RUNC = enum.auto()
    TWO_WAYS_TO_WEB = enum.auto()
    SEVERAL_WEBS = enum.auto()
    OWN_WEB_AND_ANOTHER = enum.auto()
    WEB_IS_OTHER_RELEASE = enum.auto()
    WEB_NOT_FOLLOWED = enum.auto()
    RELEASE_FAILED = enum.auto()
    NO_TSA = enum.auto()
    NO_TSA_DATA = enum.auto()
    NO_USABLE_TSA_DATA = enum.auto()
    SEVERAL_WITHOUT_DATABASE = enum.auto()
    NO_DATABASE = enum.auto()
    NO_DATABASE_DATA = enum.auto()
    NO_USABLE_DATABASE_DATA = enum.auto()
    SECRET_NOT_GRANTED = enum.auto()
    WEB_KEYS_LOST = enum.auto()
    NO_WEB_KEYS = enum.auto()
    KEY_FORM_UNKNOWN = enum.auto()
    NO_CERTIFICATE = enum.auto()
    CERTIFICATE_REFUSED = enum.auto()
    URL_WITHOUT_TLS = enum.auto()
    TLS_PORT_TAKEN = enum.auto()
    NO_ADDRESS = enum.auto()
    NO_ADDRESS_IN_NETWORK = enum.auto()
    NO_USABLE_ADDRESS = enum.auto()


@dataclasses.dataclass(frozen=True)
class Problem:
    """What keeps a part of this unit from its work.

    Attributes:
        about: the values that its sentence shows, by their names.
    """

    reason: Reason
    about: tuple[tuple[str, str], ...] = ()


def problem(reason: Reason, **about: object) -> Problem:
    """A problem with the values that its sentence shows."""
    return Problem(reason, tuple((name, str(value)) for name, value in about.items()))
