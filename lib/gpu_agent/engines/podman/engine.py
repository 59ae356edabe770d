# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""podman as an engine."""

from typing import Final

from gpu_agent.engines.engine import Engine
from gpu_agent.engines.podman import monitors
from gpu_agent.engines.podman.config import Config

_CONFIG: Final = Config()

ENGINE: Final = Engine("podman", _CONFIG.ensure, _CONFIG.remove, monitors.is_in_use)
