# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What gpu-ci-runners.service runs: it begins runners, follows them, and cleans up after them."""
