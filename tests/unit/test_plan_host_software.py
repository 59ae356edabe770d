# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which software is brought for the host's GPUs: what is missing, and nothing of others'."""

import dataclasses

import pytest

from gpu_agent.model.host import Packaged, Toolkit
from gpu_agent.model.inventory import State
from gpu_agent.model.keep import Keep
from options.part import Part
from plan import host_software as host
from plan.model import DriverPlan, HostPlan, ToolkitPlan
from plan.state import Failure
from tests.unit.host_situations import CONTAINER, LOADED, METAL, NEW, NEXT, NOW, OLD
from tests.unit.situations import TOOLKIT, codes, gpu, make_plan, parse, refused, situation, unit

THEIRS = dataclasses.replace(LOADED, ours=False)
GOOD = "1.20.0-1"


def made(found, /, **values):
    """What is planned for a machine of which this was found."""
    return host.make(dataclasses.replace(found, **values))


def without(driver=METAL, *, toolkit=None, state=State.NO_DRIVER, **options):
    """A machine whose GPUs can't be used yet."""
    options = {name.replace("_", "-"): value for name, value in options.items()}
    found = situation(state=state, toolkit=toolkit, driver="", options=options)
    return dataclasses.replace(found, driver=driver)


def test_a_machine_with_a_card_and_nothing_else_gets_driver_and_toolkit():
    wanted = made(without())
    assert wanted.driver == DriverPlan()
    assert wanted.toolkit == ToolkitPlan(GOOD, "https://nvidia.github.io/libnvidia-container")
    assert wanted.settings


def test_without_gpus_being_asked_for_all_is_given_up():
    assert make_plan(unit()).host == HostPlan()
    assert make_plan(unit("web")).host == HostPlan()


def test_a_unit_that_leaves_or_is_no_known_kind_stays_as_it_is():
    assert make_plan(unit(leaving=True)).host is Keep.AS_IS
    assert make_plan(unit(options={"deployment-mode": "x"})).host is Keep.AS_IS


def test_a_driver_that_works_is_left_alone_and_ours_is_kept_whole_and_held():
    assert made(situation(gpu(0)), driver=THEIRS).driver is Keep.AS_IS
    assert made(situation(gpu(0)), driver=LOADED).driver == DriverPlan("580-server")
    upgraded = dataclasses.replace(LOADED, changing=True)
    assert made(situation(gpu(0)), driver=upgraded).driver is Keep.AS_IS


@pytest.mark.parametrize(
    "driver",
    [
        THEIRS,
        dataclasses.replace(METAL, loaded="550.1", library=""),  # from NVIDIA's own installer
        dataclasses.replace(METAL, library="550.1"),
        dataclasses.replace(THEIRS, loaded="", modules=()),
        dataclasses.replace(METAL, modules=((NOW, NEW),)),
    ],
)
@pytest.mark.parametrize("wish", ["auto", "595-server", "none"])
def test_what_somebody_else_installed_is_never_replaced(driver, wish):
    for state in (State.NO_DRIVER, State.MISMATCH, State.NO_LIBRARY, State.NVML_ERROR):
        assert made(without(driver, state=state, gpu_driver=wish)).driver is Keep.AS_IS


def test_a_driver_that_hangs_is_not_touched():
    for driver in (LOADED, METAL, THEIRS):
        plan = made(without(driver, state=State.HUNG))
        assert (plan.driver, plan.toolkit, plan.settings, plan.nvidia) == (
            *(Keep.AS_IS, Keep.AS_IS),
            *(True, True),
        )


def test_none_touches_no_driver():
    assert made(without(gpu_driver="none")).driver is Keep.AS_IS
    assert isinstance(made(without(gpu_driver="none")).toolkit, ToolkitPlan)


def test_a_branch_is_installed_where_there_is_none_and_replaces_none_in_a_hook():
    assert made(without(gpu_driver="595-server")).driver == DriverPlan("595-server")
    moved = dataclasses.replace(LOADED, loaded="")
    assert made(without(moved, gpu_driver="595-server")).driver == DriverPlan("580-server")


@pytest.mark.parametrize(
    "changes",
    [
        {"loaded": ""},
        {"modules": ()},
        {"next_kernel": NEXT},
        {"version": "", "branch": "", "library": ""},  # apt was killed
        {"library": ""},  # and the module loaded by the boot after
    ],
)
def test_what_is_missing_of_ours_is_brought_again(changes):
    driver = dataclasses.replace(LOADED, **changes)
    assert isinstance(made(situation(gpu(0)), driver=driver).driver, DriverPlan)


def test_a_module_that_was_refused_is_not_loaded_again_before_a_reboot():
    driver = dataclasses.replace(LOADED, loaded="", refused="Key was rejected by service")
    assert made(without(driver)).driver is Keep.AS_IS


def test_nvswitches_need_a_fabric_manager():
    assert made(without(dataclasses.replace(METAL, nvswitch=True))).driver.fabric_manager


def test_a_container_gets_libraries_of_the_hosts_version_and_no_module():
    for state in (State.NO_LIBRARY, State.MISMATCH):
        assert made(without(CONTAINER, state=state)).driver == DriverPlan(userspace=NEW)


def test_in_a_container_ours_follow_the_host():
    ours = dataclasses.replace(CONTAINER, version=OLD, library=OLD, ours=True)
    assert made(without(ours, state=State.MISMATCH)).driver == DriverPlan(userspace=NEW)
    same = dataclasses.replace(ours, version=NEW)
    assert made(situation(gpu(0)), driver=same).driver == DriverPlan(userspace=NEW)


@pytest.mark.parametrize(
    "changes",
    [{"bound": True}, {"library": NEW}, {"version": OLD}, {"loaded": ""}],
)
def test_in_a_container_nothing_is_put_over_what_is_there(changes):
    driver = dataclasses.replace(CONTAINER, **changes)
    assert made(without(driver, state=State.MISMATCH)).driver is Keep.AS_IS


@pytest.mark.parametrize("state", [State.NO_GPU, State.VFIO, State.NOT_PASSED])
def test_a_card_that_is_not_here_neither_brings_nor_takes_anything(state):
    wanted = made(without(LOADED, state=state))
    assert (wanted.driver, wanted.toolkit) == (Keep.AS_IS, Keep.AS_IS)


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_other_makers_gpus_need_nothing_of_nvidias(vendor):
    wanted = made(situation(gpu(0, vendor=vendor), vendor=vendor, toolkit=None))
    assert (wanted.driver, wanted.toolkit, wanted.settings) == (Keep.AS_IS, Keep.AS_IS, True)


def test_somebody_elses_toolkit_is_used_as_it_is():
    assert made(situation(gpu(0), toolkit=Toolkit("/x", "1.17.8"))).toolkit is Keep.AS_IS


def test_ours_is_kept_at_the_version_that_is_asked_for():
    ours = Packaged("1.19.1-1", ours=True)
    assert made(situation(gpu(0)), packaged=ours).toolkit.version == GOOD
    options = {"nvidia-container-toolkit-version": "1.19.1"}
    found = situation(gpu(0), options=options)
    assert made(found, packaged=ours).toolkit.version == "1.19.1-1"


def test_a_version_with_which_no_container_worked_is_not_tried_again():
    bad = Packaged("1.19.1-1", ours=True, bad=(GOOD,))
    assert made(situation(gpu(0)), packaged=bad).toolkit is Keep.AS_IS


def test_a_way_back_that_was_broken_off_is_gone_on_with():
    broken_off = Packaged(GOOD, ours=True, previous="1.19.1-1", bad=(GOOD,))
    assert made(situation(gpu(0)), packaged=broken_off).toolkit.version == "1.19.1-1"
    # As an apt that was killed leaves it.
    halves = dataclasses.replace(broken_off, version="")
    assert made(situation(gpu(0)), packaged=halves).toolkit.version == "1.19.1-1"


def test_a_pin_with_known_vulnerabilities_is_refused_unless_it_is_allowed():
    options = {"nvidia-container-toolkit-version": "1.17.8-1"}
    found = situation(gpu(0), toolkit=None, options=options)
    assert made(found).toolkit is Keep.AS_IS
    assert ("blocked", "chosen-toolkit-vulnerable") in codes(found)
    allowed = situation(
        gpu(0), toolkit=None, options={**options, "allow-vulnerable-toolkit": True}
    )
    assert made(allowed).toolkit.version == "1.17.8-1"


def test_a_mirror_and_its_key_are_taken():
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDME\n-----END PGP PUBLIC KEY BLOCK-----"
    options = {"nvidia_toolkit_mirror": "http://mirror/nvidia/", "nvidia_toolkit_key": key}
    wanted = ToolkitPlan(GOOD, "http://mirror/nvidia", f"{key}\n")
    assert made(without(**options)).toolkit == wanted


def test_what_could_not_be_done_is_not_tried_again_in_the_same_hook():
    failed = dataclasses.replace(without(), failures=(Failure(Part.HOST, "no such package"),))
    assert host.make(failed) is Keep.AS_IS
    assert make_plan(dataclasses.replace(situation(gpu(0)), failures=failed.failures)).gpu


def test_a_vendor_that_is_none_brings_nobodys_software():
    found = situation(state=State.NO_DRIVER, options={"gpu-vendor": "amdd"})
    wanted = make_plan(dataclasses.replace(found, driver=METAL))
    assert (wanted.host, wanted.gpu) == (Keep.AS_IS, Keep.AS_IS)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        (
            "gpu-driver",
            "latest",
            "is not a driver: use auto, none, or a branch such as 580-server",
        ),
        ("gpu-driver", "580-server; reboot", "is not a driver"),
        (
            "nvidia-container-toolkit-version",
            "latest",
            "is not a version: use one such as 1.20.0-1",
        ),
        ("nvidia-toolkit-mirror", "ftp://x", "is not a URL: use http://HOST or https://HOST"),
        ("nvidia-toolkit-mirror", "http://x", "would send its key unencrypted: use https, or set"),
        ("nvidia-toolkit-mirror", "HTTP://x", "would send its key unencrypted"),
        ("nvidia-toolkit-key", "abc", "is not a public key in ASCII armour"),
    ],
)
def test_a_bad_value_is_told_and_keeps_the_software_as_it_is(option, value, text):
    told = refused(**{option: value})
    assert told.startswith(f"{option} '{value}' {text}")
    found = situation(gpu(0), options={option: value})
    assert make_plan(found).host is Keep.AS_IS
    assert make_plan(found).gpu


def test_options_are_read():
    options = parse(
        gpu_driver="580-server-open", auto_reboot="driver", allow_vulnerable_toolkit=True
    )
    assert (options.gpu_driver, options.auto_reboot) == ("580-server-open", "driver")
    assert options.allow_vulnerable_toolkit
    assert parse(nvidia_container_toolkit_version="1.20.0").toolkit_version == "1.20.0-1"
    assert TOOLKIT.version == "1.20.0"
