# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The pure decisions: options, what was found, and what this unit should be."""
