# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""podman as an engine."""

from typing import Final

from gpu_agent.engines.engine import Engine
from gpu_agent.engines.podman import config, monitors

ENGINE: Final = Engine("podman", config.ensure, config.remove, monitors.is_in_use)
