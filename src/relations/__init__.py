# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One file an interface: schema, read, write."""
