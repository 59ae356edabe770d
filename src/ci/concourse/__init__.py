# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse: its release, web and worker, and the database of a web that has none."""
