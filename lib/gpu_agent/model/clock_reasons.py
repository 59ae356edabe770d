# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Name the reasons for a lower clock, as the bits that NVIDIA's driver reports them with.

The numbers are those of nvml.h of CUDA 13, nvmlClocksEventReasons.
"""

import typing

# These three are not faults: idleness, a requested clock, the configured power limit.
IDLE: typing.Final = 0x1
APPLICATION_CLOCKS: typing.Final = 0x2
SOFTWARE_POWER_CAP: typing.Final = 0x4
HARDWARE_SLOWDOWN: typing.Final = 0x8
SOFTWARE_THERMAL: typing.Final = 0x20
HARDWARE_THERMAL: typing.Final = 0x40
POWER_BRAKE: typing.Final = 0x80
THROTTLED: typing.Final = (
    HARDWARE_SLOWDOWN | SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE
)  # fmt: skip
