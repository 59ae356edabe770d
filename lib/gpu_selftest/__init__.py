# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The checks behind the gpu-selftest action, and their verdict."""
