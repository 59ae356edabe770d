# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wake the charm between Juju's events: when a GPU comes or goes, or a long test ends."""
