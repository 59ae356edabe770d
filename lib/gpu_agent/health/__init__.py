# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The watch on GPUs that runs as a service: what it sees, decides, writes and says."""
