# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The agent: what the machine runs and records about its GPUs without Juju."""
