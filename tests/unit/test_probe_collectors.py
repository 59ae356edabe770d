# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a look through NVML says of a card that its container no longer has."""

import contextlib
import os
import shutil
import types

import pytest

from gpu_agent.gpu.vendors.collector import One
from gpu_agent.gpu.vendors.nvidia import collector, nvml
from gpu_agent.model.inventory import State
from tests import fakes

CARDS = [fakes.Card(0), fakes.Card(1)]
FIRST, SECOND = (card.uuid for card in CARDS)


class NvmlError(Exception):
    """An error of NVML, with its number in nvml.h."""

    def __init__(self, words, value=0):
        super().__init__(words)
        self.value = value


class NotFoundError(NvmlError):
    """NVML has no such GPU."""


class NotSupportedError(NvmlError):
    """NVML has no answer to this."""


class Driver:
    """NVML of a driver that has both cards, as it answers where nodes are missing.

    It answers how busy a card is, and nothing else.
    """

    NVMLError = NvmlError
    NVMLError_NotFound = NotFoundError
    NVMLError_NotSupported = NVMLError_FunctionNotFound = NotSupportedError
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16

    def __init__(self, root):
        self.root, self.broken, self.now = root, "", 0.0

    @contextlib.contextmanager
    def session(self):
        if not any(self.root.glob("dev/nvidia[0-9]")):
            raise nvml.NvmlError(State.NVML_ERROR, "No devices were found")
        yield self

    def handle(self, address):
        (card,) = (card for card in CARDS if card.pci == address)
        self.needs_node(card.uuid)
        return card.uuid

    def rates(self, uuid):
        if uuid == self.broken:
            raise NvmlError("GPU is lost", self.NVML_ERROR_GPU_IS_LOST)
        self.needs_node(uuid)
        return types.SimpleNamespace(gpu=1)

    def needs_node(self, uuid):
        if not (self.root / f"dev/nvidia{(FIRST, SECOND).index(uuid)}").exists():
            raise NotFoundError("Not Found", 6)

    def __getattr__(self, name):
        queries = {
            "nvmlDeviceGetHandleByPciBusId": self.handle,
            "nvmlDeviceGetUUID": lambda uuid: uuid,
            "nvmlDeviceGetUtilizationRates": self.rates,
        }
        return name if name.startswith("NVML_") else queries.get(name, self.refuse)

    def refuse(self, *_):
        raise NotSupportedError("Not Supported", 3)


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    fakes.make_tree(tmp_path, CARDS)
    (tmp_path / "dev").mkdir()
    for card in CARDS:
        (tmp_path / f"dev/nvidia{card.minor}").symlink_to(os.devnull)
    return driver


@pytest.fixture
def look(driver):
    """Looks once; answers who failed, by UUID, and who is missing or gone."""
    said = []
    cards = {card.uuid: card.pci for card in CARDS}
    them = collector.NvmlCollector(
        cards, driver.root, said.append, driver.session, lambda: driver.now
    )

    def look():
        said.clear()
        them.look()
        told = {one.uuid: one.figures.failure for one in said if isinstance(one, One)}
        return told, (*them.missing, *them.gone)

    return look


def test_a_card_that_was_taken_from_its_container_is_not_sick(driver, look):
    (driver.root / "run/systemd").mkdir(parents=True)
    (driver.root / "run/systemd/container").touch()
    assert look() == ({FIRST: "", SECOND: ""}, ())
    (driver.root / "dev/nvidia1").unlink()
    assert look() == ({FIRST: ""}, ())
    (driver.root / "dev/nvidia0").unlink()
    for _ in range(5):  # for as long as a driver's absence is believed, and longer
        driver.now += 61  # each look has a session of its own
        assert look() == ({}, ())
    (driver.root / "dev/nvidia0").symlink_to(os.devnull)
    driver.broken = FIRST
    assert look() == ({FIRST: "GPU is lost"}, ())  # its node is here: that is a fault


def test_it_is_not_sick_either_where_the_drivers_files_are_hidden_or_its_node_is_half_gone(
    driver, look
):
    (driver.root / "run/systemd").mkdir(parents=True)
    (driver.root / "run/systemd/container").touch()
    (driver.root / "dev/nvidia1").unlink()
    (driver.root / "dev/nvidia1").touch()  # as LXD leaves it for a moment
    driver.broken = SECOND
    assert look() == ({FIRST: ""}, ())
    shutil.rmtree(driver.root / "proc/driver/nvidia")
    assert look() == ({FIRST: ""}, ())
    (driver.root / "dev/nvidia1").unlink()
    (driver.root / "dev/nvidia1").symlink_to(os.devnull)
    assert look() == ({FIRST: "", SECOND: "GPU is lost"}, ())


def test_on_a_machine_of_its_own_a_card_without_its_node_is_missing(driver, look):
    (driver.root / "dev/nvidia1").unlink()
    assert look() == ({FIRST: ""}, (SECOND,))
