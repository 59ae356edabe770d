# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The simulated GPUs behave as the real thing does for those who look at them."""

import json
import os
import subprocess
import sys

import pytest

from tests import once
from tests.fakes import Card, build_nvml, make_tree, write_state

PRELUDE = """
import json, os, pathlib
import pynvml as n
state = pathlib.Path(os.environ["FAKE_GPU_DIR"])
def put(name, text):
    (state / name).parent.mkdir(parents=True, exist_ok=True)
    (state / name).write_text(text)
def code(function, *arguments):
    try:
        function(*arguments)
    except n.NVMLError as error:
        return error.value
    return 0
"""


@pytest.fixture(scope="session")
def nvml():
    return once.made("nvml", build_nvml)


@pytest.fixture
def state(tmp_path):
    """A machine with two cards."""
    write_state(tmp_path, [Card(number=0), Card(number=1, model="Tesla T4", memory_mib=15360)])
    return tmp_path


@pytest.fixture
def ask(nvml, state):
    """Runs lines of Python beside pynvml; answers what they left in `answer`."""

    def run(lines, init="n.nvmlInit()"):
        environment = os.environ | {"LD_LIBRARY_PATH": str(nvml), "FAKE_GPU_DIR": str(state)}
        done = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}\n{init}\n{lines}\nprint(json.dumps(answer))"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_pynvml_reads_what_a_card_is(ask):
    answer = ask("""
h = n.nvmlDeviceGetHandleByIndex(1)
pci = n.nvmlDeviceGetPciInfo(h)
memory = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
answer = [n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2(),
    n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h),
    n.nvmlDeviceGetMemoryInfo(h).total >> 20, memory.free >> 20, pci.busId, pci.pciDeviceId,
    n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetIndex(h),
    n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetMigMode(h)]
n.nvmlShutdown()
""")
    uuid = "GPU-00000001-1111-2222-3333-444444444444"
    pci = ["00000000:02:00.0", 0x20B210DE]
    system = ["580.95.05", 13000, 2]
    assert answer == [*system, "Tesla T4", uuid, 15360, 15360, *pci, 1, 1, [8, 0], [0, 0]]


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_init_fails_as_told(ask, state, code):
    (state / "nvml-init-rc").write_text(f"{code}\n")
    assert ask("answer = code(n.nvmlInit)", init="") == code


def test_no_driver_is_loaded_without_a_card_bound_to_it(ask, state):
    (state / "driver").write_text("gone\n")
    assert ask("answer = code(n.nvmlInit)", init="") == 9
    write_state(state, [Card(driver="vfio-pci")])
    assert ask("answer = code(n.nvmlInit)", init="") == 9


def test_a_card_off_the_bus_is_gone_and_the_next_one_moves_up(ask):
    answer = ask("""
gone, stays = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
put("gpus/0/fault", "fallen-off-bus\\n")
first = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(first)[:12],
    n.nvmlDeviceGetMinorNumber(first), n.nvmlDeviceGetIndex(stays),
    code(n.nvmlDeviceGetUUID, gone), code(n.nvmlDeviceGetHandleByIndex, 1)]
""")
    assert answer == [1, "GPU-00000001", 1, 0, 15, 2]


def test_a_card_that_only_nvml_has_lost_is_counted_but_not_given(ask, state):
    (state / "gpus/0/fault").write_text("nvml-only\n")
    answer = ask("""
uuid = "GPU-00000000-1111-2222-3333-444444444444"
answer = [n.nvmlDeviceGetCount(), code(n.nvmlDeviceGetHandleByIndex, 0),
    code(n.nvmlDeviceGetHandleByUUID, uuid), code(n.nvmlDeviceGetHandleByIndex, 1),
    code(n.nvmlDeviceGetHandleByUUID, "GPU-no")]
""")
    assert answer == [2, 15, 15, 0, 6]


def test_mig_devices_have_handles_names_memory_and_a_parent(ask, state):
    Card(number=1, mig=("MIG-a", "MIG-b")).write(state)
    answer = ask("""
h = n.nvmlDeviceGetHandleByIndex(1)
count = n.nvmlDeviceGetMaxMigDeviceCount(h)
found = [i for i in range(count) if not code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, i)]
mig = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1)
parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
attributes = n.nvmlDeviceGetAttributes(mig)
answer = [n.nvmlDeviceGetMigMode(h), found, n.nvmlDeviceGetUUID(mig), n.nvmlDeviceGetName(mig),
    n.nvmlDeviceGetMemoryInfo(mig).total >> 30, n.nvmlDeviceIsMigDeviceHandle(mig).value,
    n.nvmlDeviceIsMigDeviceHandle(h).value, n.nvmlDeviceGetIndex(mig),
    n.nvmlDeviceGetMinorNumber(parent),
    n.nvmlDeviceGetGpuInstanceId(mig), n.nvmlDeviceGetComputeInstanceId(mig),
    attributes.gpuInstanceSliceCount, attributes.memorySizeMB,
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID("MIG-a"))]
put("gpus/1/mig-capable", "0")
answer.append(code(n.nvmlDeviceGetMigMode, h))
""")
    name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    ids = [1, 0, 1, 1, 2, 0]
    assert answer == [[1, 1], [0, 1], "MIG-b", name, 10, *ids, 1, 10240, "MIG-a", 3]


HEALTH = {
    "persistence-mode": ("n.nvmlDeviceGetPersistenceMode(h)", 1, 0),
    "temperature": ("n.nvmlDeviceGetTemperature(h, 0)", 35, 92),
    "power-mw": ("n.nvmlDeviceGetPowerUsage(h)", 60000, 401000),
    "power-limit-mw": ("n.nvmlDeviceGetEnforcedPowerLimit(h)", 400000, 300000),
    "pcie-width": ("n.nvmlDeviceGetCurrPcieLinkWidth(h)", 16, 8),
    "pcie-width-max": ("n.nvmlDeviceGetMaxPcieLinkWidth(h)", 16, 32),
    "pcie-gen": ("n.nvmlDeviceGetCurrPcieLinkGeneration(h)", 4, 1),
    "pcie-gen-max": ("n.nvmlDeviceGetMaxPcieLinkGeneration(h)", 4, 5),
    "throttle-reasons": ("n.nvmlDeviceGetCurrentClocksEventReasons(h)", 1, 0x48),
    "ecc-mode": ("n.nvmlDeviceGetEccMode(h)[0]", 1, 0),
    "ecc-corrected-volatile": ("n.nvmlDeviceGetTotalEccErrors(h, 0, 0)", 0, 5),
    "ecc-corrected-aggregate": ("n.nvmlDeviceGetTotalEccErrors(h, 0, 1)", 0, 6),
    "ecc-uncorrected-volatile": ("n.nvmlDeviceGetTotalEccErrors(h, 1, 0)", 0, 7),
    "ecc-uncorrected-aggregate": ("n.nvmlDeviceGetTotalEccErrors(h, 1, 1)", 0, 8),
    "retired-pages-pending": ("n.nvmlDeviceGetRetiredPagesPendingStatus(h)", 0, 1),
    "remapped-rows-corrected": ("n.nvmlDeviceGetRemappedRows(h)[0]", 0, 1),
    "remapped-rows-uncorrected": ("n.nvmlDeviceGetRemappedRows(h)[1]", 0, 2),
    "remapped-rows-pending": ("n.nvmlDeviceGetRemappedRows(h)[2]", 0, 1),
    "remapped-rows-failed": ("n.nvmlDeviceGetRemappedRows(h)[3]", 0, 1),
    "field-230": ("n.nvmlDeviceGetFieldValues(h, [230])[0].value.uiVal", 0, 2),
    "memory-used-mib": ("n.nvmlDeviceGetMemoryInfo(h).used >> 20", 0, 512),
    "processes": ("[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)]", [], [4711]),
}


def test_health_is_good_until_a_file_says_otherwise_and_changes_while_it_runs(ask):
    lines = ["h = n.nvmlDeviceGetHandleByIndex(0)", "answer = {}"]
    for name, (getter, _, sick) in HEALTH.items():
        text = f"{sick[0]} 100" if isinstance(sick, list) else sick
        lines += [f"before = {getter}", f"put('gpus/0/{name}', '{text}\\n')"]
        lines += [f"answer['{name}'] = (before, {getter})"]
    answer = ask("\n".join(lines))
    assert answer == {name: [well, sick] for name, (_, well, sick) in HEALTH.items()}


def test_what_a_card_does_not_support_is_said(ask):
    answer = ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
put("gpus/0/persistence-mode", "N/A\\n")
answer = code(n.nvmlDeviceGetPersistenceMode, h)
""")
    assert answer == 3


def test_events_reach_the_set_that_registered_for_their_type_and_card(ask):
    answer = ask("""
import time
def wait(events):
    found = n.nvmlEventSetWait_v2(events, 300)
    return [n.nvmlDeviceGetIndex(found.device), found.eventType, found.eventData,
        found.gpuInstanceId]
put("events", "0 0x8 13\\n")  # before the set was made
h = [n.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
put("gpus/1/event-types", "0x8\\n")
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h[0], n.nvmlDeviceGetSupportedEventTypes(h[0]) & 0x800a, events)
n.nvmlDeviceRegisterEvents(h[1], 0x8, events)
answer = [code(n.nvmlDeviceRegisterEvents, h[1], 0xa, events), code(wait, events)]
with (state / "events").open("a") as file:
    file.write("1 0x2 0\\n1 8 79\\n0 0x8000 1\\n0 8 31 2 0\\n")
answer += [wait(events), wait(events), wait(events), code(wait, events)]
put("gpus/1/fault", "fallen-off-bus\\n")
answer += [code(wait, events), code(n.nvmlEventSetFree, events)]
""")
    whole, timeout, lost = 0xFFFFFFFF, 10, 15
    told = [[1, 8, 79, whole], [0, 0x8000, 1, whole], [0, 8, 31, 2]]
    assert answer == [3, timeout, *told, timeout, lost, 0]


def test_a_card_draws_energy_while_time_goes_on(ask):
    answer = ask("""
import time
h = n.nvmlDeviceGetHandleByPciBusId("00000000:01:00.0")
put("gpus/0/power-mw", "100000\\n")
put("gpus/0/energy-at", str(int(time.clock_gettime(time.CLOCK_BOOTTIME)) - 10))
put("gpus/0/energy-mj", "5000000")
before = n.nvmlDeviceGetTotalEnergyConsumption(h)
time.sleep(0.05)
answer = [before, n.nvmlDeviceGetTotalEnergyConsumption(h) - before]
""")
    assert 6_000_000 <= answer[0] <= 6_200_000
    assert 5_000 <= answer[1] <= 2_000_000


@pytest.mark.parametrize("call", ["nvmlInit()", "nvmlDeviceGetCount()", "nvmlDeviceGetUUID(h)"])
def test_no_call_returns_while_the_driver_hangs(ask, call):
    answer = ask(f"""
import threading, time
h = n.nvmlDeviceGetHandleByIndex(0)
put("hang", "")
thread = threading.Thread(target=lambda: n.{call}, daemon=True)
thread.start()
thread.join(0.5)
answer = [thread.is_alive()]
(state / "hang").unlink()
thread.join(30)
answer += [thread.is_alive()]
put("hang", str(time.clock_gettime(time.CLOCK_BOOTTIME) + 0.3))
answer += [code(n.nvmlDeviceGetUUID, h)]
""")
    assert answer == [True, False, 0]


def listing(root):
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_tree_shows_pci_driver_drm_and_proc(tmp_path):
    make_tree(tmp_path, [Card(), Card(number=1, driver="vfio-pci")], driver="570.1")
    pci = tmp_path / "sys/bus/pci/devices"
    assert sorted(path.name for path in pci.iterdir()) == ["0000:01:00.0", "0000:02:00.0"]
    card = pci / "0000:01:00.0"
    facts = [(card / name).read_text() for name in ("vendor", "device", "class")]
    assert facts == ["0x10de\n", "0x20b2\n", "0x030200\n"]
    drivers = [(path / "driver").resolve(strict=True).name for path in sorted(pci.iterdir())]
    assert drivers == ["nvidia", "vfio-pci"]
    nodes = list((tmp_path / "sys/class/drm").iterdir())
    assert {(node / "device").resolve(strict=True) for node in nodes} == {card.resolve()}
    proc = tmp_path / "proc/driver/nvidia"
    assert "  570.1  " in (proc / "version").read_text()
    assert [path.name for path in (proc / "gpus").iterdir()] == [card.name]
    assert (tmp_path / "sys/module/nvidia/version").read_text() == "570.1\n"
    assert (tmp_path / "proc/modules").read_text().split()[::6] == ["nvidia", "vfio_pci"]


def test_a_tree_can_be_changed_and_leaves_nothing_of_before(tmp_path):
    changed, fresh = tmp_path / "changed", tmp_path / "fresh"
    make_tree(changed, [Card(), Card(number=1)])
    lost = [Card(fault="fallen-off-bus"), Card(number=1, driver="nouveau")]
    for root in (changed, fresh):
        make_tree(root, lost, driver=None)
    assert listing(changed) == listing(fresh)
    assert not (changed / "proc/driver/nvidia").exists()
    devices = changed / "sys/bus/pci/devices"
    assert [path.name for path in devices.iterdir()] == ["0000:02:00.0"]
    assert (devices / "0000:02:00.0/driver").resolve(strict=True).name == "nouveau"


def test_a_tree_without_a_driver_has_cards_bound_to_nothing(tmp_path):
    make_tree(tmp_path, [Card(), Card(number=1, pci_vendor="0x8086", driver="none")], driver=None)
    devices = tmp_path / "sys/bus/pci/devices"
    assert len(list(devices.iterdir())) == 2
    assert not list(devices.glob("*/driver"))
    assert not (tmp_path / "sys/module/nvidia").exists()
