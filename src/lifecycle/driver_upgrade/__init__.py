# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action upgrade-driver: to another NVIDIA driver, and back where the new one fails."""
