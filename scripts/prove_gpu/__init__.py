# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Prove on a real NVIDIA GPU what tests have seen on simulated GPUs only."""
