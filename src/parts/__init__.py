# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Applies the plan to the agent: its self-test, its health watch, gpu-run."""
