# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Back up and restore web: its database and keys, in one file that only root can read."""
