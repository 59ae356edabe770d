# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A CI system that there is not: its service, its jobs and its data are files of a folder."""
