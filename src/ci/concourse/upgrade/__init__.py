# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Moves this unit to another release of Concourse, and back if that release fails here."""
