# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What wakes the charm between Juju's own events: a GPU's device node that comes or goes."""
