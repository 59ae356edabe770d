# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How its GPUs are found on the PCI bus and named."""

import typing

from gpu_agent.gpu.kernel.maker import Maker

MAKER: typing.Final = Maker("stub", "Stub", 0x1AE0, (0x0302,))
