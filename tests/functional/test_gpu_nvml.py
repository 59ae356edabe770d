# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Detection through the real binding and a simulated libnvidia-ml.so.1, as the charm does it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import once
from tests.fakes import DRIVER_VERSION, Card, build_nvml, make_tree, write_state

ROOT = Path(__file__).parents[2]
T4 = Card(number=1, model="Tesla T4", memory_mib=15360)
ASK = """
import dataclasses, json, pathlib, sys
from gpu_agent.gpu.vendors import detect, report
found = detect.detect(root=pathlib.Path(sys.argv[1]))
import pynvml
try:
    pynvml.nvmlDeviceGetCount()
    open_still = True
except pynvml.NVMLError_Uninitialized:
    open_still = False
except pynvml.NVMLError:
    open_still = None
whole = json.loads(report.as_json(found, (), {}))
print(json.dumps({**whole, "open_still": open_still}))
"""


@pytest.fixture(scope="module")
def nvml():
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for the simulated libnvidia-ml.so.1")
    return once.made("nvml", build_nvml)


@pytest.fixture
def detect(nvml, tmp_path):
    """Makes a machine with these cards, detects its GPUs; answers the inventory as a dict."""

    def run(*cards, library=nvml, without="", **state):
        root, directory = tmp_path / "root", tmp_path / "state"
        make_tree(root, cards)
        write_state(directory, cards)
        if without:
            (directory / without).unlink()
        for name, text in state.items():
            (directory / name.replace("_", "-")).write_text(f"{text}\n")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib",
            "LD_LIBRARY_PATH": str(library),
            "FAKE_GPU_DIR": str(directory),
        }
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(root)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_two_gpus_with_all_that_is_said_of_them(detect):
    found = detect(Card(), T4)
    assert found["open_still"] is False
    assert (found["state"], found["driver"], found["cuda"]) == ("ready", DRIVER_VERSION, "13.0")
    assert (found["lost"], found["detail"]) == ([], "")
    assert found["gpus"] == [
        {
            "index": index,
            "uuid": f"GPU-0000000{index}-1111-2222-3333-444444444444",
            "vendor": "nvidia",
            "model": model,
            "memory_mib": memory,
            "pci_address": f"0000:0{index + 1}:00.0",
            "minor": index,
            "mig_enabled": False,
            "mig": [],
            "nodes": [],
            "arch": "8.0",
            "brand": "nvidia",
        }
        for index, model, memory in [(0, "NVIDIA A100-SXM4-80GB", 81920), (1, "Tesla T4", 15360)]
    ]


@pytest.mark.parametrize(
    ("number", "brand"), [(0, "unknown"), (2, "tesla"), (5, "geforce"), (16, "titanrtx"), (99, "")]
)
def test_the_brand_by_the_name_that_images_require_it_by(detect, number, brand):
    assert detect(Card(brand=number))["gpus"][0]["brand"] == brand


@pytest.mark.parametrize("version", ["12.9", "11.8", "13.0"])
def test_cuda_version_is_read_out_of_its_number(detect, version):
    assert detect(Card(), cuda_version=version)["cuda"] == version


@pytest.mark.parametrize(
    ("code", "state", "detail"),
    [
        (9, "NVML failed", "Driver Not Loaded"),
        (12, "no NVML library", DRIVER_VERSION),
        (18, "driver and library differ", f"{DRIVER_VERSION} and unknown"),
        (999, "NVML failed", "Unknown Error"),
    ],
)
def test_nvml_that_does_not_start(detect, code, state, detail):
    found = detect(Card(), nvml_init_rc=code)
    assert (found["state"], found["detail"], found["gpus"]) == (state, detail, [])
    assert found["driver"] == DRIVER_VERSION


def test_a_mismatch_names_the_version_of_the_library_that_was_loaded(detect, nvml, tmp_path):
    library = tmp_path / "older"
    library.mkdir()
    (library / "libnvidia-ml.so.575.57.08").write_bytes((nvml / "libnvidia-ml.so.1").read_bytes())
    (library / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.575.57.08")
    found = detect(Card(), library=library, nvml_init_rc=18)
    assert found["detail"] == f"{DRIVER_VERSION} and 575.57.08"


def test_no_library(detect, tmp_path):
    found = detect(Card(), library=tmp_path / "empty")
    assert (found["state"], found["detail"]) == ("no NVML library", DRIVER_VERSION)


@pytest.mark.parametrize(
    ("driver", "state"),
    [("vfio-pci", "bound to vfio-pci"), ("nouveau", "nouveau loaded"), ("none", "no driver")],
)
def test_a_card_that_nvidias_driver_does_not_have(detect, driver, state):
    found = detect(Card(driver=driver))
    assert (found["state"], found["detail"]) == (state, "0000:01:00.0")


def test_a_card_for_guests_is_left_to_them(detect):
    found = detect(Card(driver="vfio-pci"), T4)
    assert [gpu["uuid"] for gpu in found["gpus"]] == [T4.uuid]
    assert (found["state"], found["lost"]) == ("ready", [])


def test_a_lost_gpu_does_not_sink_the_others(detect):
    found = detect(Card(fault="nvml-only"), T4)
    assert (found["state"], found["lost"]) == ("ready", ["0000:01:00.0"])
    assert [(gpu["index"], gpu["uuid"]) for gpu in found["gpus"]] == [(1, T4.uuid)]
    assert found["detail"] == "GPU 0: GPU is lost"


def test_a_gpu_off_the_bus_is_gone_and_the_next_moves_up(detect):
    found = detect(Card(fault="fallen-off-bus"), T4)
    assert [(gpu["index"], gpu["uuid"]) for gpu in found["gpus"]] == [(0, T4.uuid)]
    assert found["lost"] == []


def test_all_gpus_lost_is_a_failure(detect):
    found = detect(Card(fault="nvml-only"))
    assert (found["state"], found["detail"]) == ("NVML failed", "GPU 0: GPU is lost")
    assert found["lost"] == ["0000:01:00.0"]
    assert found["open_still"] is False


def test_mig_devices_have_uuid_and_profile(detect, tmp_path):
    mig = Card(mig=("MIG-a", "MIG-b"))
    found = detect(mig, T4)
    assert [gpu["mig_enabled"] for gpu in found["gpus"]] == [True, False]
    assert found["gpus"][0]["mig"] == [
        {"uuid": "MIG-a", "profile": "1g.10gb"},
        {"uuid": "MIG-b", "profile": "1g.10gb"},
    ]
    assert detect(Card(mig=()))["gpus"][0]["mig"] == []
    # Their numbers have a gap once one of them was destroyed.
    (left,) = detect(mig, without="gpus/0/mig/0")["gpus"][0]["mig"]
    assert left["uuid"] == "MIG-b"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("memory-mib", "memory_mib", 0), ("mig-capable", "mig_enabled", False)],
)
def test_what_a_gpu_does_not_support_is_left_open(detect, tmp_path, monkeypatch, name, key, value):
    written = Card.write

    def write(card, state):
        written(card, state)
        (state / "gpus/0" / name).write_text("N/A\n")

    monkeypatch.setattr(Card, "write", write)
    found = detect(Card())
    assert (found["state"], found["gpus"][0][key]) == ("ready", value)


CHANGE = """
import pathlib, sys
from gpu_agent.gpu.vendors import detect
root, library = map(pathlib.Path, sys.argv[1:])
print(detect.detect(root=root).state.value)
library.unlink()
print(detect.detect(root=root).state.value)
library.symlink_to("libnvidia-ml.so.1.there")
print(detect.detect(root=root).state.value)
"""


def test_a_library_that_comes_and_goes_is_seen_by_the_same_process(nvml, tmp_path):
    """As in a hook that installs another driver: the binding keeps what it has loaded."""
    root, directory, libraries = (tmp_path / name for name in ("root", "state", "libraries"))
    make_tree(root, [T4])
    write_state(directory, [T4])
    libraries.mkdir()
    shutil.copy(nvml / "libnvidia-ml.so.1", libraries / "libnvidia-ml.so.1.there")
    library = libraries / "libnvidia-ml.so.1"
    library.symlink_to("libnvidia-ml.so.1.there")
    done = subprocess.run(
        [sys.executable, "-c", CHANGE, root, library],
        env={
            "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib",
            "LD_LIBRARY_PATH": str(libraries),
            "FAKE_GPU_DIR": str(directory),
        },
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[:-1] == ["ready", "no NVML library", "ready"]
