# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's web on this machine: its settings, service, database, certificate and health."""
