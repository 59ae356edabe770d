# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which GPUs tasks may get, the tags that say so, and the sentence for everything in the way."""

import dataclasses

import pytest

import allowed
import config
from found import Found, Machine, RememberedIds, Toolkit
from gpu.inventory import Gpu, Inventory, MigDevice, State, Vendor

DEFAULTS = {
    "deployment-mode": "worker",
    "enable-gpu": True,
    "gpu-device-ids": "all",
    "gpu-vendor": "auto",
    "concourse-version": "8.3.0",
    "web-port": 8080,
}
NOTHING = RememberedIds()
GOOD = Toolkit("/usr/bin/nvidia-container-runtime", "1.20.0")


def gpu(number, index=None, **values):
    """Card `number`, at NVML's index `index`."""
    given = {
        "index": number if index is None else index,
        "uuid": f"GPU-{number}",
        "vendor": Vendor.NVIDIA,
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "pci_address": f"0000:0{number + 1}:00.0",
        "minor": number,
    }
    return Gpu(**{**given, **values})


def situation(*gpus, ids="all", tag="", toolkit=GOOD, remembered=NOTHING, **inventory):
    options = config.parse({**DEFAULTS, "gpu-device-ids": ids, "tag": tag})
    given = {"state": State.READY, "driver": "580.95.05", "cuda": "13.0", **inventory}
    return Found(
        options=options,
        name="worker-0",
        address="10.0.0.7",
        machine=Machine("amd64", toolkit),
        inventory=Inventory(gpus=gpus, **given),
        remembered=remembered,
    )


def uuids(choice):
    return [gpu.uuid for gpu in choice.gpus]


def problem(found):
    return allowed.problem_with(found, allowed.choose(found))


def tags(found):
    return allowed.tags(found, allowed.choose(found))


def test_all_means_what_is_there():
    choice = allowed.choose(situation(gpu(0), gpu(1)))
    assert (uuids(choice), choice.indexes) == (["GPU-0", "GPU-1"], (0, 1))
    assert choice.remember == RememberedIds()
    assert allowed.note(choice) == "2x NVIDIA"


@pytest.mark.parametrize(
    ("ids", "cards", "indexes"),
    [
        ("1", [1], (1,)),
        ("2,0", [0, 2], (0, 2)),
        ("0000:02:00.0", [1], (1,)),
        ("02:00.0,0", [0, 1], (0, 1)),
        ("0,01:00.0", [0], (0,)),
    ],
)
def test_ids_of_every_kind_choose_cards(ids, cards, indexes):
    choice = allowed.choose(situation(gpu(0), gpu(1), gpu(2), ids=ids))
    assert (uuids(choice), choice.indexes) == ([f"GPU-{card}" for card in cards], indexes)
    assert choice.problem == ""


def test_a_uuid_chooses_its_card():
    name = "GPU-4d4f434b-0000-0000-0000-000000000001"
    choice = allowed.choose(situation(gpu(0), gpu(1, uuid=name), ids=name.upper()))
    assert (uuids(choice), choice.indexes) == ([name], (1,))


def test_unknown_ids_say_which_exist():
    found = situation(gpu(0), gpu(1), ids="7,1,9")
    assert problem(found) == (
        "gpu-device-ids '7,1,9': no GPU has the id 7, 9. This machine has 0, 1"
    )
    assert allowed.choose(found).gpus == ()


REMEMBERED = RememberedIds(("1",), (("1", "GPU-1"),), (1,))


def test_an_index_keeps_meaning_its_card_when_another_is_lost():
    first = allowed.choose(situation(gpu(0), gpu(1), gpu(2), ids="1"))
    assert first.remember == REMEMBERED
    # Card 0 has fallen off the bus, so that NVML calls card 1 now 0, and card 2 now 1.
    later = situation(gpu(1, index=0), gpu(2, index=1), ids="1", remembered=first.remember)
    choice = allowed.choose(later)
    assert (uuids(choice), choice.indexes, choice.missing) == (["GPU-1"], (1,), ())
    assert choice.remember == REMEMBERED
    assert "gpu-devices=1" in tags(later)


def test_a_chosen_card_that_is_lost_is_missed_not_replaced():
    first = allowed.choose(situation(gpu(0), gpu(1), gpu(2), ids="0,1")).remember
    found = situation(gpu(1, index=0), gpu(2, index=1), ids="0,1", remembered=first)
    choice = allowed.choose(found)
    assert (uuids(choice), choice.indexes, choice.missing) == (["GPU-1"], (1,), (0,))
    assert allowed.note(choice) == "1x NVIDIA, 1 missing: GPU 0"
    assert tags(found)[:4] == ("gpu", "gpu-type=nvidia", "gpu-count=1", "gpu-devices=1")
    # It comes back as if nothing had been.
    back = allowed.choose(situation(gpu(0), gpu(1), gpu(2), ids="0,1", remembered=choice.remember))
    assert (uuids(back), back.indexes, back.missing) == (["GPU-0", "GPU-1"], (0, 1), ())


def test_a_card_chosen_by_its_uuid_keeps_the_index_that_it_had():
    """Else two cards would be called by one index when another is lost."""
    uuid = "GPU-4d4f434b-0000-0000-0000-000000000002"
    ids = f"1,{uuid},03:00.0"
    first = allowed.choose(situation(gpu(0), gpu(1), gpu(2, uuid=uuid), ids=ids))
    assert first.indexes == (1, 2)
    cards = (gpu(1, index=0), gpu(2, index=1, uuid=uuid))
    later = situation(*cards, ids=ids, remembered=first.remember)
    assert "gpu-devices=1,2" in tags(later)
    assert "gpu-count=2" in tags(later)


def test_all_chosen_cards_gone_is_a_problem_and_they_stay_remembered():
    found = situation(gpu(0), ids="1", remembered=REMEMBERED)
    assert problem(found).startswith("All GPUs of gpu-device-ids '1' are gone: bring them back")
    assert allowed.choose(found).remember == REMEMBERED


def test_a_new_choice_gives_indexes_their_meaning_of_today():
    moved = (gpu(1, index=0), gpu(2, index=1))
    choice = allowed.choose(situation(*moved, ids="1,0", remembered=REMEMBERED))
    assert choice.remember == RememberedIds(("1", "0"), (("1", "GPU-2"), ("0", "GPU-1")), (1, 0))
    assert allowed.choose(situation(*moved, remembered=REMEMBERED)).remember == RememberedIds()


def test_a_mistaken_choice_forgets_nothing():
    choice = allowed.choose(situation(gpu(0), gpu(1), ids="7", remembered=REMEMBERED))
    assert choice.remember == REMEMBERED


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_driver_that_fails_for_a_while_forgets_nothing(state):
    found = situation(ids="1", remembered=REMEMBERED, state=state)
    assert allowed.choose(found) == allowed.Choice(remember=REMEMBERED)


def test_a_gpu_that_nvml_lost_is_told():
    choice = allowed.choose(situation(gpu(0), lost=("0000:02:00.0",)))
    assert allowed.note(choice) == "1x NVIDIA, 1 lost: 0000:02:00.0"


def test_tags_in_their_order():
    found = situation(gpu(0), gpu(1), ids="1", tag="fast, gpu,big")
    assert tags(found) == (
        "gpu",
        "gpu-type=nvidia",
        "gpu-count=1",
        "gpu-devices=1",
        "gpu-model=a100-sxm4-80gb",
        "gpu-memory=80GiB",
        "cuda=13.0",
        "driver=580",
        "fast",
        "big",
    )


def test_facts_that_are_unknown_or_differ_are_left_out():
    mixed = situation(gpu(0), gpu(1, model="Tesla T4", memory_mib=15360), driver="", cuda="")
    assert tags(mixed) == ("gpu", "gpu-type=nvidia", "gpu-count=2", "gpu-memory=16GiB")
    assert "gpu-memory" not in " ".join(tags(situation(gpu(0, memory_mib=0))))


@pytest.mark.parametrize("model", ["", "???", "NVIDIA (?)"])
def test_a_model_without_a_name_has_no_empty_tag(model):
    assert "gpu-model=" not in tags(situation(gpu(0, model=model)))


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("Tesla T4", "tesla-t4"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("NVIDIA RTX PRO 6000 Blackwell (Max-Q),x", "rtx-pro-6000-blackwell-max-q-x"),
    ],
)
def test_model_tag(model, tag):
    assert f"gpu-model={tag}" in tags(situation(gpu(0, model=model)))


@pytest.mark.parametrize(
    ("name", "reported", "sold"),
    [
        ("T4", 15360, 16),
        ("L4", 23034, 24),
        ("A10", 22731, 24),
        ("A10G", 23028, 24),
        ("A40, L40S", 46068, 48),
        ("RTX A6000", 49140, 48),
        ("V100", 16384, 16),
        ("V100-32", 32768, 32),
        ("P100", 16280, 16),
        ("K80", 11441, 12),
        ("A30", 24576, 24),
        ("A100-80", 81920, 80),
        ("A100-40", 40536, 40),
        ("A100-40 older driver", 40960, 40),
        ("H100", 81559, 80),
        ("H100 NVL", 95830, 94),
        ("GH200, RTX PRO 6000", 97871, 96),
        ("H200", 143771, 141),
        ("B200", 183359, 180),
        ("RTX 4090", 24564, 24),
        ("RTX 5090", 32607, 32),
        ("RTX 3080", 10240, 10),
        ("2080 Ti", 11264, 11),
        ("RTX 3060", 12288, 12),
        ("A4500", 20470, 20),
        ("A500", 4096, 4),
        ("a slice of a virtual one", 7168, 7),
    ],
)
def test_memory_is_told_as_sold(name, reported, sold):
    assert f"gpu-memory={sold}GiB" in tags(situation(gpu(0, memory_mib=reported)))


SOLD = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288)


@pytest.mark.parametrize("gib", SOLD)
def test_a_size_that_is_sold_stays_it(gib):
    for reported in (gib * 1024, gib * 1024 * 99 // 100):
        assert f"gpu-memory={gib}GiB" in tags(situation(gpu(0, memory_mib=reported)))


STATES = {
    State.NO_GPU: "No GPU found on the PCI bus: pass one through (lxc config device add",
    State.VFIO: "GPU 0000:01:00.0 is bound to vfio-pci for a virtual machine: give it back to",
    State.NOUVEAU: "GPU 0000:01:00.0 is driven by nouveau, which runs no CUDA: install NVIDIA's",
    State.NO_DRIVER: "GPU 0000:01:00.0 has no driver: install it with ubuntu-drivers install",
    State.NOT_PASSED: "GPU 0000:01:00.0 is on the host but not in this container: pass",
    State.NO_LIBRARY: "NVIDIA driver 0000:01:00.0 is loaded but libnvidia-ml.so.1 is missing",
    State.MISMATCH: "NVIDIA driver and libnvidia-ml.so.1 differ in version (0000:01:00.0): ",
    State.NVML_ERROR: "NVML failed: 0000:01:00.0. See dmesg for NVRM and Xid lines, then reboot",
}


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_every_state_has_its_own_remedy(state):
    assert problem(situation(state=state, detail="0000:01:00.0")).startswith(STATES[state])


@pytest.mark.parametrize("state", [State.NO_GPU, State.VFIO, State.NOT_PASSED])
def test_a_command_in_a_remedy_names_the_application(state):
    found = dataclasses.replace(situation(state=state), name="gpu-workers-12")
    assert problem(found).endswith(", or juju config gpu-workers enable-gpu=false")


def test_what_nvml_says_is_no_template():
    found = situation(state=State.NVML_ERROR, detail="{state.__class__} {0}")
    assert problem(found).startswith("NVML failed: {state.__class__} {0}.")


@pytest.mark.parametrize(
    ("toolkit", "text"),
    [
        (None, "nvidia-container-runtime is missing: install nvidia-container-toolkit 1.19.1 or"),
        ("1.19.0", "nvidia-container-runtime 1.19.0 has known vulnerabilities (CVE-2026-24260):"),
        ("1.9.9", "nvidia-container-runtime 1.9.9 has known vulnerabilities"),
        ("0.20.0", "nvidia-container-runtime 0.20.0 has known vulnerabilities"),
        ("", "/usr/bin/nvidia-container-runtime --version tells no version: install nvidia-conta"),
        ("1.19.1", ""),
        ("1.19.1-1", ""),
        ("1.20.0", ""),
        ("2.0.0", ""),
    ],
)
def test_the_toolkit_must_be_there_and_safe(toolkit, text):
    given = None if toolkit is None else dataclasses.replace(GOOD, version=toolkit)
    said = problem(situation(gpu(0), toolkit=given))
    assert said.startswith(text)
    assert bool(said) == bool(text)


def test_mig_mode_hands_out_its_devices_and_needs_some():
    sliced = gpu(0, mig_enabled=True, mig=(MigDevice("MIG-a", "1g.10gb"),))
    assert problem(situation(sliced, gpu(1))) == ""
    assert problem(situation(gpu(0), gpu(1, mig_enabled=True))).startswith(
        "GPU 1 has MIG mode on but no MIG device: make some with nvidia-smi mig -cgi"
    )
    # One that no task may get is nobody's business.
    assert problem(situation(gpu(0), gpu(1, mig_enabled=True), ids="0")) == ""


def test_where_no_gpu_is_asked_for_nothing_is_wrong():
    found = dataclasses.replace(situation(toolkit=None), inventory=None)
    assert problem(found) == ""
    assert allowed.choose(found).gpus == ()
