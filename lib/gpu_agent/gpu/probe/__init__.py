# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Query GPU drivers in a child process, so that a hanging driver blocks nothing else."""
