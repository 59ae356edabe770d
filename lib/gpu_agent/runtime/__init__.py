# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Installs gpu_runtime with its policy, its task mounts and its own NVIDIA configuration."""
