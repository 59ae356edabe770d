# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs are unavailable and why: quarantine, external use, leases, requested self-tests."""
