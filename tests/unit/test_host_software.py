# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""In which order the host's software comes, and what one part's failure leaves of the others."""

import pytest

from gpu_agent.model.keep import Keep
from host import kernel_settings as settings
from host import nvidia_driver as driver
from host import nvidia_toolkit as toolkit
from host import software
from machine import apt_errors, packages
from plan.model import DriverPlan, HostPlan, ToolkitPlan

PLAN = HostPlan(
    driver=DriverPlan(),
    toolkit=ToolkitPlan("1.20.0-1", "https://mirror.test"),
    settings=True,
)
ALL = ["driver (1 of 2)", "toolkit (2 of 2)", "settings"]


class Rooms:
    """What was asked for in order, and the errors that the parts end with."""

    def __init__(self, monkeypatch):
        self.said, self.errors = [], {}
        for room in (driver, toolkit):
            monkeypatch.setattr(
                room,
                "ensure",
                self.part(room.__name__.removeprefix("host.").removeprefix("nvidia_")),
            )
        monkeypatch.setattr(settings, "ensure", lambda _: self.note("settings"))
        monkeypatch.setattr(driver, "release", lambda: self.note("driver goes"))
        monkeypatch.setattr(toolkit, "release", lambda: self.note("toolkit goes"))
        monkeypatch.setattr(settings, "remove", lambda: self.note("settings go"))

    def note(self, what):
        self.said.append(what)
        return True

    def part(self, name):
        def ensure(_, progress):
            progress(name)
            if name in self.errors:
                raise self.errors[name]
            return name == "toolkit"

        return ensure

    def ensure(self, plan=PLAN):
        return software.ensure(plan, self.said.append)


@pytest.fixture
def rooms(monkeypatch):
    return Rooms(monkeypatch)


def test_the_driver_comes_first_and_the_settings_last(rooms):
    assert rooms.ensure() is True
    assert rooms.said == ALL


def test_what_is_given_up_goes_before_anything_comes(rooms):
    rooms.ensure(HostPlan(driver=None, toolkit=Keep.AS_IS, settings=False))
    assert rooms.said == ["driver goes", "settings go"]


@pytest.mark.parametrize("fails", [["driver"], ["driver", "toolkit"], ["toolkit"]])
def test_a_part_that_can_not_be_had_stops_no_other_and_the_first_is_told(rooms, fails):
    rooms.errors = {name: packages.PackageError(f"no {name}") for name in fails}
    with pytest.raises(packages.PackageError, match=f"no {fails[0]}"):
        rooms.ensure()
    assert rooms.said == ALL


def test_another_package_manager_is_waited_for_once(rooms):
    rooms.errors = {"driver": apt_errors.BusyError("apt is at work", passes=True)}
    with pytest.raises(packages.PackageError, match="at work"):
        rooms.ensure()
    assert rooms.said == [ALL[0], "settings"]
