# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The only room with side effects: processes, files, packages, services."""
