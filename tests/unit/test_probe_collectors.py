# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a look through NVML says of a card that its container no longer has."""

import contextlib
import os
import shutil

import pytest

from gpu_agent.gpu.vendors.collector import One
from gpu_agent.gpu.vendors.nvidia import collector, nvml
from gpu_agent.gpu.vendors.nvidia import nvml_metrics as figures
from gpu_agent.model.card import Figures
from gpu_agent.model.inventory import State
from tests import fakes

CARDS = [fakes.Card(0), fakes.Card(1)]
FIRST, SECOND = (card.uuid for card in CARDS)


class Driver:
    """NVML of a driver that has both cards, as it answers where nodes are missing."""

    NVMLError = ValueError

    def __init__(self, root):
        self.root, self.broken = root, ""

    @contextlib.contextmanager
    def session(self):
        if not any(self.root.glob("dev/nvidia[0-9]")):
            raise nvml.NvmlError(State.NVML_ERROR, "No devices were found")
        yield self

    def find(self, _binding, uuid, _address):
        return uuid

    def read(self, uuid):
        if uuid == self.broken:
            return Figures(failure="GPU is lost")
        if not (self.root / f"dev/nvidia{(FIRST, SECOND).index(uuid)}").exists():
            raise figures.NoDeviceError
        return Figures(busy=1)


@pytest.fixture
def driver(monkeypatch, tmp_path):
    driver = Driver(tmp_path)
    fakes.make_tree(tmp_path, CARDS)
    (tmp_path / "dev").mkdir()
    for card in CARDS:
        (tmp_path / f"dev/nvidia{card.minor}").symlink_to(os.devnull)
    for name in ("find", "read"):
        monkeypatch.setattr(figures, name, getattr(driver, name))
    monkeypatch.setattr(nvml, "session", driver.session)
    monkeypatch.setattr(collector.NvmlCollector, "register", lambda self: None)
    return driver


@pytest.fixture
def look(driver):
    """Looks once; answers who failed, by UUID, and who is missing or gone."""
    said = []
    them = collector.NvmlCollector({c.uuid: c.pci for c in CARDS}, driver.root, said.append)

    def look():
        said.clear()
        them.look()
        told = {one.uuid: one.figures.failure for one in said if isinstance(one, One)}
        return told, (*them.missing, *them.gone)

    return look


def test_a_card_that_was_taken_from_its_container_is_not_sick(driver, look, monkeypatch):
    (driver.root / "run/systemd").mkdir(parents=True)
    (driver.root / "run/systemd/container").touch()
    assert look() == ({FIRST: "", SECOND: ""}, ())
    (driver.root / "dev/nvidia1").unlink()
    assert look() == ({FIRST: ""}, ())
    (driver.root / "dev/nvidia0").unlink()
    monkeypatch.setattr(collector, "_ANEW", -1)  # each look has a session of its own
    for _ in range(5):  # for as long as a driver's absence is believed, and longer
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
