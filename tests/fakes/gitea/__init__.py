# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Small stand-ins for a Gitea server and its runner, for tests that have no real ones at hand."""
