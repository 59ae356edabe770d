# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Machines with GPUs of AMD and Intel, as folders; and what NVML answers of NVIDIA's."""

import dataclasses
import os
import stat
import types

from gpu_agent.gpu.vendors import detect, registry
from gpu_agent.gpu.vendors.nvidia import inventory
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


class Dev:
    """NVIDIA's nodes in /dev with these numbers by path; see gpu_runtime.proc.Files."""

    def __init__(self, numbers):
        self.numbers = numbers

    def names(self, folder):
        found = (path.rpartition("/") for path in self.numbers)
        return [name for there, _, name in found if there == folder]

    def look(self, path):
        if path not in self.numbers:
            return None
        number = os.makedev(*self.numbers[path])
        return types.SimpleNamespace(st_mode=stat.S_IFCHR, st_rdev=number)

    def read(self, _path):
        return "0x10de"  # the vendor's id on the bus


class Nvml:
    """Looks for GPUs where NVML says what a test wants it to say.

    Attributes:
        answer: what it says of NVIDIA's GPUs, or the error that it raises.
        library: the version of its library.
        asked: how often it was asked.
    """

    def __init__(self, answer, library=""):
        self.answer, self.library = answer, library
        self.asked = 0
        nvidia = dataclasses.replace(registry.NVIDIA, look=self._look)
        self.vendors = nvidia, *registry.ALL[1:]

    def detect(self, root, vendor="auto"):
        return detect.detect(vendor, root, self.vendors)

    def _look(self, root, *, integrated):
        return inventory.look(root, self._read, lambda: self.library)

    def _read(self):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


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
