# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Writes into a job's own log which GPUs it got, how it used them and which faults they had."""
