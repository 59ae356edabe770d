# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The Linux machine: processes, files, packages, services.

Only this package has side effects, except for the modules that tests/unit/test_house.py lists.
"""
