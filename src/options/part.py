# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options, typed and validated. Pure: a bad value is an OptionError, never a silent "off"."""

import enum


class Part(enum.Enum):
    """What of a unit can be kept as it is while the rest goes on."""

    UNIT = "unit"
    HOST = "host"
    RELEASE = "release"
    GPU = "gpu"
    ENGINES = "engines"
    WATCH = "watch"
    WORKER = "worker"
    WEB = "web"
    RUN = "gpu-run"
