# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse on this unit: its release, web and worker."""
