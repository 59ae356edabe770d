# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The metrics that the GPU health service serves to Prometheus, on this machine only."""
