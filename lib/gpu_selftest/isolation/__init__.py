# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level isolation: does a task get its GPU, no other, and none without a lease."""
