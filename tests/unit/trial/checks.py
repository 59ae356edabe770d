# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the product does with a stub vendor; test_trial_vendor.py runs it.

It runs with the modules of a copy of this tree, in which the stub is registered.
"""

import time

import pytest

from gpu_agent.availability import external_processes, known_gpus
from gpu_agent.availability.known_gpus import Known
from gpu_agent.gpu.vendors import detect, device_nodes, registry, report
from gpu_agent.gpu.vendors.nvidia.xid import Log
from gpu_agent.health.sources import Sources
from gpu_agent.model.card import Card
from gpu_agent.model.inventory import State
from gpu_agent.model.observations import Look
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_selftest import settings as selftest
from gpu_selftest.burnin import level as burnin
from gpu_selftest.check import Request
from gpu_selftest.compute import level as compute
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.quick import gpu_checks
from gpu_selftest.settings import Settings
from parts import health_watch
from plan import gpus, labels
from plan.agent_view import AgentView
from tests.unit.situations import (
    TSA,
    changed,
    lines,
    make_plan,
    note,
    situation,
)
from tests.unit.wrapper_rig import TASKS, Rig

ADDRESS = "0000:41:00.0"
PATIENCE = 60.0


@pytest.fixture
def root(tmp_path):
    """A machine with one GPU of the stub."""
    folder = tmp_path / "root"
    device = folder / "sys/bus/pci/devices" / ADDRESS
    for name, text in {
        "vendor": "0x1ae0", "class": "0x030200", "device": "0x0001",
        "drm/card0/dev": "226:0", "drm/renderD128/dev": "226:128",
        "hwmon/hwmon0/temp1_input": "41000",
    }.items():  # fmt: skip
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text)
    (folder / "sys/bus/pci/drivers/stub").mkdir(parents=True)
    (device / "driver").symlink_to("../../drivers/stub")
    (folder / "dev/dri").mkdir(parents=True)
    (folder / "dev/dri/renderD128").touch()
    return folder


@pytest.fixture
def inventory(root):
    return detect.detect("stub", root)


@pytest.fixture
def found(inventory):
    """What a unit knows of this machine."""
    unit = situation(*inventory.gpus, vendor="stub", driver="", cuda="")
    return changed(unit, tsa=TSA, agent=AgentView(tasks=TASKS))


def test_it_is_found_and_shown(root, inventory):
    (gpu,) = inventory.gpus
    assert (inventory.state, gpu.uuid, gpu.nodes) == (
        State.READY, "STUB-0", ("/dev/dri/renderD128",)
    )  # fmt: skip
    assert detect.detect(root=root) == inventory
    assert detect.cards(root) == (ADDRESS,)
    assert report.as_results(inventory, ("STUB-0",), {})["vendor"] == "stub"
    assert device_nodes.may_be("stub0")
    assert not device_nodes.may_be("stubborn")


def test_the_plan_hands_it_out_and_its_tags_name_it(found):
    made = make_plan(found)
    assert isinstance(made.gpu, GpuPlan)
    assert made.gpu.nvidia_runtime == ""
    assert labels.of_gpus(found, gpus.choose(found))[:4] == (
        "gpu", "gpu-type=stub", "gpu-count=1", "gpu-model=trial-1"
    )  # fmt: skip
    assert note(found) == "1x Stub"


def test_a_task_gets_it_and_another_task_does_not(found, tmp_path):
    rig = Rig(tmp_path / "rig")
    text = install.policy_text(make_plan(found).gpu)
    # This machine has no such node; any character device stands in for it.
    text = text.replace("/dev/dri/renderD128", "/dev/null").replace(": 240", ": 0")
    rig.policy_path.write_text(text)
    rig.spec("task")
    assert rig.create() == 42
    assert rig.ran[0] == "runc"
    assert rig.holders["ID"]["gpus"] == ["STUB-0"]
    rig.hold(other=["STUB-0"])
    assert rig.create() == 1
    assert rig.code == "wait-timeout"


def test_health_polls_it_and_listens_for_it(root, inventory):
    (card,) = (health_watch._card(gpu.index, gpu) for gpu in inventory.gpus)
    assert card == Card("STUB-0", 0, ADDRESS, "Trial 1", ("STUB-0",))
    sources, end = Sources([card], root), time.monotonic() + PATIENCE
    try:
        looks = []
        while not looks and time.monotonic() < end:
            looks = [one for one in sources.take(1) if isinstance(one, Look)]
    finally:
        sources.close()
    assert looks[0].figures["STUB-0"].temperature == 41


def test_its_loss_is_noted(tmp_path):
    one = Known("STUB-0", "stub", "Stub Trial 1", ADDRESS, 0, allowed=True)
    known_gpus.add([one], tmp_path / "inventory.json")
    assert known_gpus.read(tmp_path / "inventory.json") == (one,)
    assert external_processes.look(situation(vendor="stub").inventory, dict, dict) == ()


def test_the_selftest_has_the_checks_for_it(inventory, tmp_path):
    kept = Settings("worker/0", vendor="stub", gpus=inventory.gpus)
    selftest.write(kept, tmp_path / "selftest.json")
    assert selftest.read(tmp_path / "selftest.json") == kept
    (gpu,) = inventory.gpus
    nodes = registry.find("stub").own_nodes(gpu)
    assert [node.path for node in nodes] == ["/dev/dri/renderD128"]
    for results in (
        compute.run(kept, kept.gpus, "cuda", lambda _: None, Equipment()),
        burnin.run(kept, kept.gpus, Request("run"), lambda _: None, Equipment()),
    ):
        assert {result.outcome.value for result in results} == {"skipped"}
    told = gpu_checks.run(kept, registry.find("stub").health(["STUB-0"]), Log(), kept.gpus)
    assert [result.check for result in told] == ["nvml", "memory"]


@pytest.mark.parametrize(
    ("state", "code"),
    [(State.NO_DRIVER, "no-kernel-driver"), (State.VFIO, "gpu-passthrough")],
)
def test_what_keeps_it_from_use_is_explained(state, code):
    found = situation(state=state, detail=ADDRESS, vendor="stub")
    (line,) = lines(changed(found, tsa=TSA))
    assert line.code == code
    assert ADDRESS in line.text
