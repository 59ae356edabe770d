# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How NVIDIA's GPUs are found on the PCI bus and named."""

import typing

from gpu_agent.gpu.kernel.maker import Maker

MAKER: typing.Final = Maker("nvidia", "NVIDIA", 0x10DE, (0x0300, 0x0302))
