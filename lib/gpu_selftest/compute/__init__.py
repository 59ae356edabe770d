# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level compute: are a GPU's results right, and is it as fast as it should be."""
