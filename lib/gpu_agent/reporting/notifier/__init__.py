# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What wakes the charm between Juju's own events: GPUs' nodes, and the end of a long test."""
