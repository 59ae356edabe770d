# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wakes the charm between Juju's events, when a GPU comes or goes and when a long test ends."""
