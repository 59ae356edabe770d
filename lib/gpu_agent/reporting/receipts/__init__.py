# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A receipt for each lease: what it had, used and met. And what they add up to."""
