# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The software that the host's GPUs and containers need: toolkit, networking, no rivals."""
