# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The stand-in's web and worker. Not Concourse: only what the charm's tests meet of it."""
