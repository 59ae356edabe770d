# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Tests that take minutes; `make soak` runs them."""
