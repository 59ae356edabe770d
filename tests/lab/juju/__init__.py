# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An emulated Juju controller: model, agents and hook commands, with Juju's semantics."""
