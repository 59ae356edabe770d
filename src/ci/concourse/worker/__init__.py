# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The Concourse worker on this machine: its keys, settings, service, volumes and removal."""
