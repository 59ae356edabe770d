# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Containers of jobs: the machine's engine, as a job with `runner-containers=trusted` has it."""
