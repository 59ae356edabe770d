# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Frozen types that the agent, the self-test and the charm share, and pure functions on them."""
