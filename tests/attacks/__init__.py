# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a hostile pipeline does, and what must not come of it."""
