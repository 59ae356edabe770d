# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command gpu-ci-agent: the agent and the self-test on a machine without Juju."""
