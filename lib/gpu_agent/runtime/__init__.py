# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installs the runc wrapper, its policy and the NVIDIA runtime's private configuration."""
