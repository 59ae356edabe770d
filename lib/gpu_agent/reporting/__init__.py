# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the agent reports: receipts of leases, metrics, lines in job logs, wakes of the charm."""
