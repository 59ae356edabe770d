# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-cordon and gpu-uncordon: which GPU is meant, and what is said of it."""

import json

import pytest

from gpu_agent import paths
from gpu_agent import paths as wrapper
from gpu_agent.availability import external_use, quarantine, retests
from gpu_agent.availability import known_gpus as known
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import operator as cordon
from gpu_agent.model.inventory import Inventory, State
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from tests.unit.grants import in_use
from tests.unit.situations import RUNTIME, gpu, sliced

XID = "Xid 79: the GPU has fallen off the bus"


def had(number, index):
    """Card `number`, which was here under that index."""
    return known.Known(
        uuid=f"GPU-{number}",
        vendor="nvidia",
        model="NVIDIA A100-SXM4-80GB",
        pci_address=f"0000:0{number + 1}:00.0",
        index=index,
        allowed=True,
    )


class Unit:
    """A worker of two GPUs, and what its operator does."""

    def __init__(self):
        self.allow(gpu(0), gpu(1))

    def allow(self, *gpus):
        self.inventory = Inventory(State.READY, gpus, vendor="nvidia")
        wrapper.POLICY.write_text(install.policy_text(GpuPlan(gpus, RUNTIME)))

    def run(self, action, wish, reason="swapping the fan"):
        if action == "gpu-cordon":
            return cordon.cordon(wish, reason)
        return cordon.uncordon(wish, reason, self.inventory)

    def fails(self, action, wish, reason="swapping the fan"):
        with pytest.raises(leases.LeaseError) as caught:
            self.run(action, wish, reason)
        return str(caught.value)

    @property
    def notes(self):
        lines = map(json.loads, wrapper.LOG.read_text().splitlines())
        return [(line["kind"], line["reason"]) for line in lines]


@pytest.fixture
def unit(tmp_path, monkeypatch):
    for name in ("POLICY", "STORE", "EXTERNAL", "LOG"):
        monkeypatch.setattr(wrapper, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "QUARANTINE", tmp_path / "quarantine")
    monkeypatch.setattr(retests, "PATH", tmp_path / "retests")
    path = tmp_path / "inventory.json"
    for function in (known.read, known.add, known.forget):
        monkeypatch.setattr(function, "__defaults__", (path,))
    return Unit()


def out():
    return [(entry.uuid, entry.reason, entry.by) for entry in quarantine.read()]


@pytest.mark.parametrize("wish", ["1", "gpu-1", "GPU-1", " gpu-1 "])
def test_a_gpu_is_cordoned_by_any_of_its_names(unit, wish):
    assert unit.run("gpu-cordon", wish) == {
        "gpu": "GPU-1",
        "state": "cordoned by the operator: swapping the fan",
        "running": "none",
    }
    assert out() == [("GPU-1", "swapping the fan", "operator")]
    assert unit.notes == [("gpu-cordon", "GPU-1: swapping the fan")]
    assert leases.report()["gpu-1"].startswith("cordoned by the operator: swapping the fan, A100")
    assert leases.report()["free"] == "1 of 2"


@pytest.mark.parametrize("wish", ["0", "gpu-0", "gpu-0-mig-1", "MIG-0-1", "GPU-0"])
def test_a_mig_device_means_its_gpu(unit, wish):
    unit.allow(sliced(0, "1g.10gb", "1g.10gb"), gpu(1))
    assert unit.run("gpu-cordon", wish)["gpu"] == "GPU-0"
    assert leases.report()["gpu-0-mig-0"].startswith("cordoned by the operator: swapping")
    assert leases.report()["free"] == "1 of 3"
    assert unit.run("gpu-uncordon", wish)["state"] == "available"


def test_what_runs_there_goes_on(unit):
    with Store(str(wrapper.STORE)) as table:
        for name, keeper in (("JOB", Host().me()), ("OLD", None)):
            holder = Holder("/b", ["GPU-1"], [], exclusive=False, since=Host.now())
            holder.keeper = keeper
            table.holders[name] = holder
    assert unit.run("gpu-cordon", "1")["running"] == "container JOB (starting, 0 s)"
    assert sorted(Store(str(wrapper.STORE)).read().holders) == ["JOB", "OLD"]
    (wrapper.STORE / "leases.json").write_text("{")
    assert "is damaged" in unit.run("gpu-cordon", "1")["running"]


def test_a_second_cordon_replaces_the_reason_and_says_so(unit):
    unit.run("gpu-cordon", "1")
    results = unit.run("gpu-cordon", "1", " it is loud ")
    assert results["state"] == "cordoned by the operator: it is loud"
    before = "cordoned by the operator: swapping the fan, since 20"
    assert results["was"].startswith(before)
    assert out() == [("GPU-1", "it is loud", "operator")]


def test_a_cordon_takes_the_place_of_a_quarantine(unit):
    quarantine.put("GPU-1", XID, "xid", "quick", "reseat the card")
    assert leases.report()["gpu-1"].startswith(f"quarantined: {XID}, A100-SXM4-80GB")
    since = quarantine.read()[0].since
    assert unit.run("gpu-cordon", "1")["was"] == f"quarantined: {XID}, since {since}"
    quarantine.put("GPU-1", XID, "xid", "quick", "reseat the card")
    assert out() == [("GPU-1", "swapping the fan", "operator")]


@pytest.mark.parametrize("action", ["gpu-cordon", "gpu-uncordon"])
def test_what_is_no_gpu_and_what_is_no_reason(unit, action):
    expected = "No GPU here is '2'; this unit has gpu-0 (GPU-0), gpu-1 (GPU-1)"
    assert unit.fails(action, "2") == expected
    for reason in ("  ", "a\nb"):
        assert unit.fails(action, "1", reason) == "reason must be one line of printable text"
    assert out() == []
    assert not wrapper.LOG.exists()


def test_where_tasks_get_no_gpu_none_is_cordoned(unit):
    wrapper.POLICY.unlink()
    assert unit.fails("gpu-cordon", "1") == (
        "Tasks get no GPU on this unit, so there is none to cordon"
    )
    quarantine.put("GPU-1", XID, "xid", "quick", "")
    assert unit.run("gpu-uncordon", "GPU-1")["was"] == f"quarantined: {XID}"


def test_uncordon_lifts_either(unit):
    unit.run("gpu-cordon", "0")
    quarantine.put("GPU-1", XID, "xid", "quick", "")
    retests.ask("GPU-1", "quick", XID)
    assert unit.run("gpu-uncordon", "0", "done") == {
        "gpu": "GPU-0",
        "was": "cordoned by the operator: swapping the fan",
        "state": "available",
    }
    assert unit.run("gpu-uncordon", "gpu-1", "a false alarm") == {
        "gpu": "GPU-1",
        "was": f"quarantined: {XID}",
        "state": "available",
        "next": "gpu-selftest level=quick tests whether the fault is gone",
    }
    assert out() == []
    assert retests.read() == (), "the operator's word is enough"
    assert unit.notes[1:] == [
        ("gpu-uncordon", "GPU-0: done"), ("gpu-uncordon", "GPU-1: a false alarm"),
    ]  # fmt: skip
    assert leases.report()["free"] == "2 of 2"


def test_a_damaged_file_can_be_lifted(unit):
    paths.QUARANTINE.mkdir()
    (paths.QUARANTINE / "GPU-1.json").write_text("{")
    assert leases.report()["gpu-1"].startswith("quarantined: its record is damaged, A100")
    assert unit.run("gpu-uncordon", "1")["was"].startswith("quarantined: damaged record")
    assert out() == []


def test_uncordon_of_one_that_is_not_out_tells_those_that_are(unit):
    assert (
        unit.fails("gpu-uncordon", "1") == "GPU-1 is not cordoned or quarantined; these are: none"
    )
    quarantine.put("GPU-0", XID, "xid", "quick", "")
    assert unit.fails("gpu-uncordon", "1") == (
        f"GPU-1 is not cordoned or quarantined; these are: GPU-0 (quarantined: {XID})"
    )


def test_uncordon_of_one_in_use_outside(unit):
    external_use.ensure([("GPU-1", in_use("pid 4711 (python3)"))])
    assert unit.fails("gpu-uncordon", "1") == (
        "GPU-1 is in use outside CI: pid 4711 (python3). It is available again "
        "within 5 minutes after that ends"
    )
    unit.run("gpu-cordon", "1")
    assert unit.run("gpu-uncordon", "1")["state"] == (
        "still in use outside CI: pid 4711 (python3)"
    )


@pytest.mark.parametrize("wish", ["GPU-7", "gpu-7", "7"])
@pytest.mark.parametrize("quarantined", [True, False])
def test_uncordon_of_one_that_is_gone_forgets_it(unit, wish, quarantined):
    known.add([had(1, 1), had(7, 7)])
    if quarantined:
        quarantine.put("GPU-7", "lost: it was at 0000:08:00.0", "inventory", "quick", "")
    assert unit.run("gpu-uncordon", wish) == {
        "gpu": "GPU-7",
        "was": "quarantined: lost: it was at 0000:08:00.0" if quarantined else "missing",
        "state": "forgotten: this machine no longer has it",
    }
    assert known.read() == (had(1, 1),)
    assert out() == []


def test_none_is_forgotten_that_may_be_here(unit):
    known.add([had(1, 1), had(7, 7)])
    unit.inventory = Inventory(State.NVML_ERROR, detail="it hangs", vendor="nvidia")
    for uuid in ("GPU-1", "GPU-7"):
        quarantine.put(uuid, XID, "xid", "quick", "")
        assert unit.run("gpu-uncordon", uuid)["state"] == "available"
    assert known.read() == (had(1, 1), had(7, 7))
    assert unit.fails("gpu-uncordon", "GPU-7") == (
        "GPU-7 is not cordoned or quarantined; these are: none"
    )


def test_an_index_that_means_two_is_refused(unit, tmp_path):
    known.add([had(7, 1)])
    assert unit.fails("gpu-uncordon", "1") == "'1' may be GPU-1 or GPU-7: use that UUID"
    (tmp_path / "inventory.json").write_text("{")
    assert "inventory.json is damaged" in unit.fails("gpu-uncordon", "1")
