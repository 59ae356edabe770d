# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of Concourse's release, web and worker, typed and validated."""
