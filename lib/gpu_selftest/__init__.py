# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test, a program of its own: checks by level, the report, the systemd unit."""
