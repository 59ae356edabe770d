# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What brings a web back: its database and its keys, in one file that only root reads."""
