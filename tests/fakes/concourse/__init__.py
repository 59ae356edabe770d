# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A small stand-in for a Concourse release, for a lab that has no real one at hand."""
