# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Asks the Concourse web on this machine about its workers, and whose step a container is."""
