# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Level quick: is the machine as it should be, and is each GPU well."""
