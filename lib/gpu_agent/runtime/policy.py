# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reads what the policy of the installed runtime allows tasks to have."""

from gpu_agent import paths
from gpu_runtime import policy
from gpu_runtime.lease_table import NOUNS, STEP
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused


def allowed(kind: str = STEP) -> Policy | None:
    """What tasks may have; None where they get no GPU: the wrapper is not here, or has none.

    Args:
        kind: of whoever asks, one of gpu_runtime.lease_table's KINDS; all of them may have the
            same.

    Raises:
        gpu_runtime.refusal.Refused: the policy can't be read or followed.
    """
    if not paths.FRONT.exists() and not paths.POLICY.exists():
        return None
    return policy.read(str(paths.POLICY), NOUNS[kind])


def handed_out() -> tuple[str, ...]:
    """UUIDs of the GPUs that the wrapper gives to tasks; none where it refuses them all."""
    try:
        found = allowed()
    except Refused:
        return ()
    return tuple(dict.fromkeys(device.gpu for device in found.devices)) if found else ()
