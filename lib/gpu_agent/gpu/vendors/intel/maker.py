# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How Intel's GPUs are found on the PCI bus and named."""

import typing

from gpu_agent.gpu.kernel.maker import Maker

# Class 1200 is that of Intel's NPUs, which are not GPUs.
MAKER: typing.Final = Maker("intel", "Intel", 0x8086, (0x0300, 0x0380))
