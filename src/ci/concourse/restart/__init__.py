# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Restarts the worker, or web beside it, without losing a build."""
