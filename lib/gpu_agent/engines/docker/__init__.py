# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime with Docker, and give Docker its own containerd beside Concourse."""
