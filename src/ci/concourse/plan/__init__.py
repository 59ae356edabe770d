# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Decides which release, web and worker of Concourse this unit should have."""
