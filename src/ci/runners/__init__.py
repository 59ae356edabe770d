# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of a CI service, such as Gitea Actions: each has GPUs of its own, and one job."""
