# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs as the kernel and the drivers of their vendors show them."""
