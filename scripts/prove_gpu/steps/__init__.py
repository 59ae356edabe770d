# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The proofs, one function each: prove_gpu.program lists them with their deadlines."""
