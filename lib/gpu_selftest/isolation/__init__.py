# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level isolation: a task gets its GPU, no other GPU, and none without a lease."""
