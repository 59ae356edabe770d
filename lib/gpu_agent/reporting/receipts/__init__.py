# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Usage records (receipts) of leases: GPUs, use and faults of each; and their totals."""
