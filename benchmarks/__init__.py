# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Measurements of the OCI wrapper, each as a ratio to a named baseline of the same run."""
