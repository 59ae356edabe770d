# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CI systems that run jobs, a room each."""
