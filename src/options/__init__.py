# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's options, typed and validated."""
