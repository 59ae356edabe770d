# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decides what follows from a GPU's fault, without reading a file, a clock or a driver."""
