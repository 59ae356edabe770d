# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CI systems whose jobs get GPUs, one package each."""
