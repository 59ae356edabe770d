# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's GPUs and driver: inventory, NVML, Xids, driver packages, kernel modules, reset."""
