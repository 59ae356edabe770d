# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How AMD's GPUs are found on the PCI bus and named."""

import typing

from gpu_agent.gpu.kernel.maker import Maker

# Instinct cards from MI200 on have class 1200.
MAKER: typing.Final = Maker("amd", "AMD", 0x1002, (0x0300, 0x0380, 0x1200))
