# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The operator's actions, as Juju runs them."""
