# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level compute: a GPU's results are right, and it is as fast as it should be."""
