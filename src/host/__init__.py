# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What GPUs need of the host: driver, toolkit, packages, kernel settings; and its network."""
