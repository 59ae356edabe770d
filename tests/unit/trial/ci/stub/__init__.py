# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A CI system that does not exist: the room of a trial."""
