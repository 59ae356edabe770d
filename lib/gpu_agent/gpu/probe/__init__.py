# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Asks the GPU drivers in a child process, so that a driver that hangs holds up nothing else."""
