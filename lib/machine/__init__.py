# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The Linux machine: processes, files, packages, services; only this package has side effects."""
