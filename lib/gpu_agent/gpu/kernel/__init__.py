# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""TODO: what this room is."""
