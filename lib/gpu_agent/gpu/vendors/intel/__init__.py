# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The inventory of Intel's GPUs, as the kernel drivers i915 and xe show them."""
