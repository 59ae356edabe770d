# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""podman and Docker on this machine: our runtime `gpu-ci`, registered with them and taken away."""
