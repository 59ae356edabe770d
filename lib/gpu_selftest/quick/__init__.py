# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level quick: checks of the machine and of each GPU's health, without a container."""
