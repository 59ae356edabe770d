# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The state of machine, driver and NVIDIA's container toolkit, with the remedy for each."""
