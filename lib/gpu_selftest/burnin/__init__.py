# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level burn-in: a GPU stays healthy under load."""
