# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The inventory of AMD's GPUs, as the kernel driver amdgpu shows them."""
