# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The parts of a unit; each can stay unchanged while the others are applied."""

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
