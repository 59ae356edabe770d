# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Machines with GPUs of AMD and Intel, as folders."""

from gpu_agent.model.inventory import Inventory
from tests.fakes import make_dev, make_tree, maker_card

NODES = "sys/class/kfd/kfd/topology/nodes"
PCI_IDS = """\
# List of PCI ID's
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]
\t\t1002 0e3b  RX 7900 GRE
8086  Intel Corporation
\t4680  AlderLake-S GT1
# a remark
\t56c0  ATS-M150 [Data Center GPU Flex 170]
\t\t8086 4905  A card of some sort [Nothing]
\te20b  Battlemage G21 [Arc B580]
8088  Beijing Wangxun Technology Co., Ltd.
\t0101  WX1860A2
"""


def make_place(root, *cards, dev=None, container=False):
    """Makes a machine with these cards below `root`; answers it.

    `dev`: those that have nodes in /dev, all without it.
    """
    make_tree(root, cards)
    make_dev(root, cards if dev is None else dev)
    if container:
        put(root, "run/systemd/container", "lxc\n")
    return root


def amd(number=0, **values):
    return maker_card("amd", number, **values)


def intel(number=0, **values):
    return maker_card("intel", number, **values)


def integrated(**values):
    """The graphics of an Intel processor."""
    place = {"pci": "0000:00:02.0", "memory_mib": 0, "driver": "i915", "pci_class": "0x030000"}
    return intel(**place | values)


def put(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def uuids(inventory: Inventory):
    return [gpu.uuid for gpu in inventory.gpus]
