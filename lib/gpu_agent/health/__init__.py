# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPU health service: it observes the GPUs, applies the fault policy and reports."""
