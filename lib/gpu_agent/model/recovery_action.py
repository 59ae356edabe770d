# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Name the recovery actions that NVIDIA's driver may request (nvml.h of CUDA 13).

The numbers are NVML_GPU_RECOVERY_ACTION's; 0 is nothing.
"""

import typing

WORDS: typing.Final = {
    1: "a reset of the GPU",
    2: "a reboot of the machine",
    3: "an end to peer-to-peer traffic",
    4: "no new work and then a reset of the GPU",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a cold start of the machine",
}

RESETS: typing.Final = (1, 3, 4)
"""Actions for which a reset of the GPU is enough."""

COLD_START: typing.Final = 7
"""The action that needs the power off and on."""
