# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The pure decisions: what this unit should be after what was found, and what its status says."""
