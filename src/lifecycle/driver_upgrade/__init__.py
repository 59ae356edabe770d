# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Move a worker from one NVIDIA driver to another, and back if the new one fails."""
