# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What stands against our runtime in an engine."""


class EngineError(Exception):
    """An engine can't have our runtime; the text says why and what to do."""
