# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The problems that keep a part of a unit from its work; plan/messages.py has their texts."""

import dataclasses
import enum


class Reason(enum.Enum):
    """The code of a problem's kind of status line; plan/messages.py names the values of its text.

    A state of driver or toolkit has its own code in gpu_agent.diagnosis, as the value `code`.
    """

    BAD_OPTION = "bad-option"
    RESOURCE_UNKNOWN = "resource-unknown"
    NO_CHECKSUM = "no-checksum"
    GPU_OBSTACLE = "gpu-obstacle"
    GPU_OBSTACLE_PASSES = "gpu-obstacle-passes"
    UNKNOWN_GPU_IDS = "unknown-gpu-ids"
    CHOSEN_GPUS_GONE = "chosen-gpus-gone"
    MIG_WITHOUT_DEVICES = "mig-without-devices"
    GPUS_PER_TASK_TOO_LARGE = "gpus-per-task-too-large"
    ALL_UNAVAILABLE = "all-gpus-unavailable"
    RIVAL = "other-containerd"
    FOREIGN_RUNC = "foreign-runc"
    TWO_WAYS_TO_WEB = "two-ways-to-web"
    SEVERAL_WEBS = "several-webs"
    OWN_WEB_AND_ANOTHER = "own-web-and-another"
    WEB_IS_OTHER_RELEASE = "web-is-other-release"
    WEB_NOT_FOLLOWED = "web-not-followed"
    RELEASE_FAILED = "release-rolled-back"
    NO_TSA = "no-web"
    NO_TSA_DATA = "no-web-data"
    NO_USABLE_TSA_DATA = "unusable-web-data"
    SEVERAL_WITHOUT_DATABASE = "no-shared-database"
    NO_DATABASE = "no-database"
    NO_DATABASE_DATA = "no-database-data"
    NO_USABLE_DATABASE_DATA = "unusable-database-data"
    DATABASE_NOT_GRANTED = "database-secret-not-granted"
    WEB_KEYS_LOST = "web-keys-lost"
    NO_WEB_KEYS = "no-web-keys"
    KEY_FORM_UNKNOWN = "key-form-unknown"
    NO_CERTIFICATE = "no-certificate"
    CERTIFICATE_REFUSED = "certificate-refused"
    URL_WITHOUT_TLS = "url-without-tls"
    TLS_PORT_TAKEN = "tls-port-taken"
    NO_ADDRESS = "no-address"
    NO_ADDRESS_IN_NETWORK = "no-address-in-network"
    NO_USABLE_ADDRESS = "no-usable-address"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem that keeps a part of this unit from its work.

    Attributes:
        about: the values of its text, by name.
    """

    reason: Reason
    about: tuple[tuple[str, str], ...] = ()


def problem(reason: Reason, **about: object) -> Problem:
    """Return a problem with the values of its text."""
    return Problem(reason, tuple((name, str(value)) for name, value in about.items()))
