# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level burn-in: does a GPU stay well under load."""
