# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Registers our runtime `gpu-ci` with podman and Docker, and removes it again."""
