# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Registers our runtime with podman."""
