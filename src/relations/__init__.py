# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Relations, one module an interface: schema, read, write; and what Juju itself says."""
