# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""List the least rates of GPU models, from projects that measured many of them.

TFLOPS and copies within the GPU are DCGM's, whose diagnostics fail below them; its authors took
75 % of their measurements. DCGM measures some models in float64 (use_dgemm). Entries that are
obvious errors, such as 49 GB/s for an L40, are left out. Rates of copies from the host and between
GPUs are Azure's, from its own machines.
"""

import dataclasses
import typing

DCGM: typing.Final = "NVIDIA DCGM 4.6.0 nvvs/diag-skus.yaml.in"
AZURE: typing.Final = "Azure/azurehpc-health-checks conf/"


@dataclasses.dataclass(frozen=True)
class Model:
    """The least rates of a model; None if no source has one.

    Attributes:
        name: the model.
        fp32: TFLOPS of matrix products in float32.
        fp64: the same in float64.
        within: GB/s of a copy within the GPU; bytes read and bytes written both count.
        host: GB/s of a copy from or to the host's pinned memory.
        peer: GB/s of a copy to another GPU over NVLink.
    """

    name: str
    fp32: float | None = None
    fp64: float | None = None
    within: float | None = None
    host: float | None = None
    peer: float | None = None


# By the PCI device id, with NVIDIA (10de) as the vendor.
_MODELS: typing.Final = {
    "1db0": Model("V100-SXM2-16GB", fp64=3.5, within=607.5, host=9.0),
    "1db1": Model("V100-SXM2-16GB", fp64=3.5, within=607.5, host=9.0),
    "1db2": Model("V100-DGXS-16GB", fp64=3.0, within=607.5),
    "1db3": Model("V100-FHHL-16GB", fp64=3.15),
    "1db4": Model("V100-PCIE-16GB", fp64=3.5, within=607.5, host=9.0),
    "1db5": Model("V100-SXM2-32GB", fp64=5.25, within=607.5, host=9.0),
    "1db6": Model("V100-PCIE-32GB", fp64=3.5, within=607.5),
    "1db7": Model("V100-DGXS-32GB", fp64=5.25, within=607.5),
    "1db8": Model("V100-SXM3-32GB", fp64=5.25, within=675.0),
    "1df6": Model("V100S-PCIE-32GB", fp64=5.25, within=675.0),
    "1e30": Model("Quadro RTX 6000/8000", fp32=9.75, within=415.275),
    "1e78": Model("Quadro RTX 6000/8000 passive", fp32=9.45, within=360.225),
    "1eb4": Model("T4G", fp32=2.85, within=182.6),
    "1eb8": Model("T4", fp32=4.125, within=183.0),
    "20b0": Model("A100-SXM4-40GB", fp64=13.725, host=21.0, peer=235.0),
    "20b2": Model("A100-SXM4-80GB", fp64=6.975, within=1173.0, host=21.0, peer=238.0),
    "20b5": Model("A100-PCIE-80GB", fp64=13.425, within=1121.25, host=21.0),
    "20b7": Model("A30", fp32=7.05, within=585.0),
    "20bd": Model("A800-SXM4-40GB", fp32=14.1, within=975.0),
    "20f1": Model("A100-PCIE-40GB", fp64=5.963, within=969.75),
    "20f3": Model("A800-SXM4-80GB", fp32=13.95, within=971.0),
    "20f5": Model("A800-PCIE-80GB", fp32=13.35, within=971.0),
    "20f6": Model("A800-PCIE-40GB", fp32=12.375, within=971.0),
    "2230": Model("RTX A6000", fp32=11.475, within=506.0),
    "2231": Model("RTX A5000", fp32=9.825, within=507.5),
    "2235": Model("A40", fp32=14.25, within=423.675),
    # DCGM has several boards with this id: these are the lowest rates.
    "2236": Model("A10", fp32=6.075, within=363.75),
    "2237": Model("A10G", fp32=12.75, within=362.7),
    "2238": Model("A10M", fp32=6.825, within=311.25),
    "230e": Model("H20 NVL16", fp32=18.881, within=2387.499),
    "2321": Model("H100 NVL", fp32=25.575, within=2043.0),
    "2322": Model("H800 PCIe", fp32=24.375, within=1245.0),
    "2329": Model("H20", fp32=17.7, within=1507.0),
    "232c": Model("H20 HBM3e", fp32=20.562, within=1635.0),
    "2330": Model("H100 80GB HBM3", fp32=29.25, within=1905.0, host=48.0, peer=335.0),
    "2331": Model("H100 PCIe", fp32=15.375, within=1230.0),
    "2335": Model("H200", fp32=37.5, host=48.0, peer=335.0),
    "233b": Model("H200 NVL", fp32=32.218, within=2212.5),
    "2342": Model("GH200 480GB", fp32=37.075, within=2130.0),
    "2348": Model("GH200 144G HBM3e", fp32=37.581, within=2340.0),
    "24b0": Model("RTX A4000", fp32=7.5, within=290.75),
    "2531": Model("RTX A2000", fp32=2.933, within=192.75),
    "2571": Model("RTX A2000 12GB", fp32=2.775, within=192.0),
    "25b6": Model("A16/A2", fp32=1.687, within=123.225),
    "26b5": Model("L40", fp32=30.0),
    "26b9": Model("L40S", fp32=30.0, within=525.0),
    "26ba": Model("L20", fp32=26.625, within=491.25),
    "27b6": Model("L2", fp32=6.667, within=190.5),
    "27b8": Model("L4", fp32=8.7, within=198.5),
    "2901": Model("B200", fp32=36.949, within=4072.5),
    "2909": Model("B200 168GB", fp32=33.843, within=4402.5),
    "2bb3": Model("RTX PRO 5000 Blackwell", fp32=32.55, within=832.5),
    "2bb4": Model("RTX PRO 6000 Blackwell Max-Q", fp32=39.306, within=1147.5),
    "2bb5": Model("RTX PRO 6000 Blackwell Server", fp32=54.543, within=1110.0),
    "3182": Model("B300", fp32=36.825, within=4623.36),
    "31c2": Model("GB300", fp32=48.75, within=4522.5),
}


def find(pci_device: str) -> Model | None:
    """Return the least rates of the model with this PCI device id; None if it is not listed.

    Args:
        pci_device: as in /sys/bus/pci/devices/*/device, such as `0x2330`.
    """
    return _MODELS.get(pci_device.strip().lower().removeprefix("0x"))
