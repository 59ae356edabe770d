# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""In which order the host's software comes, and what one part's failure leaves of the others."""

import pytest

from gpu_agent.model.keep import Keep
from host.software import Software
from machine import apt_errors, packages
from plan.model import DriverPlan, HostPlan, ToolkitPlan

PLAN = HostPlan(
    driver=DriverPlan(),
    toolkit=ToolkitPlan("1.20.0-1", "https://mirror.test"),
    settings=True,
)
ALL = ["driver (1 of 2)", "toolkit (2 of 2)", "settings"]


class Part:
    """The driver or the toolkit; it notes what it is asked for, and ends with its `error`."""

    def __init__(self, name, said):
        self.name, self.said, self.error = name, said, None

    def ensure(self, _plan, progress):
        progress(self.name)
        if self.error:
            raise self.error
        return self.name == "toolkit"

    def release(self):
        self.said.append(f"{self.name} goes")
        return True


class Settings:
    """Settings that note what they are asked for."""

    def __init__(self, said):
        self.said = said

    def ensure(self, _):
        self.said.append("settings")
        return True

    def remove(self):
        self.said.append("settings go")
        return True


class Rooms:
    """What was asked for in order, and the parts that were asked."""

    def __init__(self):
        self.said = []
        self.parts = {name: Part(name, self.said) for name in ("driver", "toolkit")}
        self.software = Software(**self.parts, settings=Settings(self.said))

    def ensure(self, plan=PLAN):
        return self.software.ensure(plan, self.said.append)


@pytest.fixture
def rooms():
    return Rooms()


def test_the_driver_comes_first_and_the_settings_last(rooms):
    assert rooms.ensure() is True
    assert rooms.said == ALL


def test_what_is_given_up_goes_before_anything_comes(rooms):
    rooms.ensure(HostPlan(driver=None, toolkit=Keep.AS_IS, settings=False))
    assert rooms.said == ["driver goes", "settings go"]


@pytest.mark.parametrize("fails", [["driver"], ["driver", "toolkit"], ["toolkit"]])
def test_a_part_that_can_not_be_had_stops_no_other_and_the_first_is_told(rooms, fails):
    for name in fails:
        rooms.parts[name].error = packages.PackageError(f"no {name}")
    with pytest.raises(packages.PackageError, match=f"no {fails[0]}"):
        rooms.ensure()
    assert rooms.said == ALL


def test_another_package_manager_is_waited_for_once(rooms):
    rooms.parts["driver"].error = apt_errors.BusyError("apt is at work", passes=True)
    with pytest.raises(packages.PackageError, match="at work"):
        rooms.ensure()
    assert rooms.said == [ALL[0], "settings"]
