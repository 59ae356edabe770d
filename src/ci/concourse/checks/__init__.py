# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's own checks in the self-test: a program that answers in JSON."""
