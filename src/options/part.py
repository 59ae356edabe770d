# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The parts of a unit; each can stay unchanged while the others are changed."""

import enum


class Part(enum.Enum):
    """A part of a unit that can stay unchanged while the others are changed."""

    UNIT = "unit"
    HOST = "host"
    RELEASE = "release"
    GPU = "gpu"
    ENGINES = "engines"
    WATCH = "watch"
    WORKER = "worker"
    WEB = "web"
    RUN = "gpu-run"
