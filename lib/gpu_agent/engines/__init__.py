# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime `gpu-ci` with podman and Docker, and remove it again."""
