# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find this machine's GPUs; each vendor's own code is in a package of its own."""
