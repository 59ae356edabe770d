# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs tasks may not get now and why: quarantines, cordons, leases, requested self-tests."""
