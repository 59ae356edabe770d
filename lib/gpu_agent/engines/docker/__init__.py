# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Registers our runtime with Docker, and gives Docker a containerd of its own beside Concourse."""
