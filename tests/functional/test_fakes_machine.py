# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""fakegpu and the NVIDIA runtimes, in a private mount namespace that stands for a machine."""

import json
import os
import shutil
import sys
import time

import pytest

from tests.fakes import FAKEGPU, STANDIN_RUNTIME
from tests.functional import gpu_machine
from tests.functional.gpu_machine import REAL_RUNTIME

RUNC = shutil.which("runc", path="/usr/local/sbin:/usr/sbin:/usr/bin:/opt/concourse/current/bin")
RUNTIMES = {"stand-in": str(STANDIN_RUNTIME), "real": "/usr/bin/nvidia-container-runtime"}
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and device nodes need root")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine.start(tmp_path_factory) as machine:
        yield machine


@pytest.fixture(autouse=True)
def installed(machine):
    machine.fakegpu("install", "--count", "3")


def test_install_makes_nodes_trees_and_libraries(machine):
    nodes = machine.run("stat", "-c", "%n %Hr:%Lr %a", "/dev/nvidia1", "/dev/nvidiactl",
                        "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools").stdout  # fmt: skip
    assert nodes.split("\n")[:4] == [
        "/dev/nvidia1 195:1 666",
        "/dev/nvidiactl 195:255 666",
        "/dev/nvidia-uvm 510:0 666",
        "/dev/nvidia-uvm-tools 510:1 666",
    ]
    addresses = machine.run("ls", "/sys/bus/pci/devices").stdout.split()
    assert addresses == [card["pci"] for card in machine.cards()]
    version = machine.run("cat", "/proc/driver/nvidia/version", "/sys/module/nvidia/version")
    assert version.stdout.count("580.95.05") == 2
    assert "libnvidia-ml.so.1" in machine.run("/sbin/ldconfig", "-p").stdout
    wants = "/etc/systemd/system/sysinit.target.wants/fake-gpu.service"
    assert machine.exists(wants, "/sys/class/net/lo/mtu") == [True, True]
    assert "lo:" in machine.run("cat", "/proc/net/dev").stdout


def test_apply_again_changes_nothing(machine):
    def times():
        places = ("/dev", "/run/fake-gpu/tree", "/usr/lib", "/etc/ld.so.cache")
        show = ("-newer", "/run/systemd/container", "-printf", "%p %i %C@\n")
        return machine.run("find", *places, *show).stdout

    assert "/dev/nvidia0" in times()
    before, mounts = times(), machine.run("cat", "/proc/self/mountinfo").stdout
    machine.fakegpu("apply")
    assert times() == before
    assert machine.run("cat", "/proc/self/mountinfo").stdout == mounts


def test_a_lost_card_leaves_the_bus_and_comes_back(machine):
    first = machine.cards()[0]
    places = ("/dev/nvidia0", f"/sys/bus/pci/devices/{first['pci']}", "/dev/nvidia1",
              f"/proc/driver/nvidia/gpus/{first['pci']}")  # fmt: skip
    machine.fakegpu("lose", "0")
    assert machine.exists(*places) == [False, False, True, False]
    machine.fakegpu("restore", "0")
    assert machine.exists(*places) == [True] * 4
    machine.fakegpu("lose", "0", "--nvml-only")
    assert machine.exists(*places) == [True] * 4
    assert machine.cards()[0] == first | {"fault": "nvml-only"}


def test_without_the_driver_only_pci_is_left(machine):
    pci = machine.cards()[0]["pci"]
    places = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia", "/sys/module/nvidia",
              f"/sys/bus/pci/devices/{pci}/driver")  # fmt: skip
    machine.fakegpu("driver", "gone")
    assert machine.exists(*places, f"/sys/bus/pci/devices/{pci}") == [False] * 5 + [True]
    assert "libnvidia-ml" not in machine.run("/sbin/ldconfig", "-p").stdout
    machine.fakegpu("driver", "loaded")
    assert machine.exists(*places) == [True] * 5


def test_a_card_can_be_bound_elsewhere_added_set_and_split(machine):
    machine.fakegpu("bind", "0", "vfio-pci")
    machine.fakegpu("add", "--model", "Tesla T4")
    machine.fakegpu("set", "1", "temperature=90")
    machine.fakegpu("mig", "2", "3")
    cards = machine.cards()
    assert [card["driver"] for card in cards] == ["vfio-pci", "nvidia", "nvidia", "nvidia"]
    assert [len(card["mig"] or ()) for card in cards] == [0, 0, 3, 0]
    assert cards[3]["memory_mib"] == 15360
    link = f"/sys/bus/pci/devices/{cards[0]['pci']}/driver"
    assert machine.run("readlink", "-e", link).stdout == "/sys/bus/pci/drivers/vfio-pci\n"
    assert machine.exists("/dev/nvidia0", "/dev/nvidia3") == [False, True]
    minors = machine.run("cat", "/proc/driver/nvidia-caps/mig-minors").stdout
    assert minors.count("gpu2/") == 6
    machine.fakegpu("mig", "2", "off")
    assert machine.cards()[2]["mig"] is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lose", "9"], "no card 9; there are: 0, 1, 2"),
        (["set", "0", "colour=red"], "temperature"),
        (["mig", "0", "8"], "0 to 7 or off"),
        (["nvml-fault", "bad"], "RC is a number"),
        (["install", "--count", "99"], "0 to 32"),
    ],
)
def test_wrong_use_is_explained(machine, arguments, text):
    done = machine.run(FAKEGPU, *arguments, check=False)
    assert done.returncode == 1
    assert text in done.stderr


# ---- containers ----


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    if RUNC is None:
        pytest.skip("no runc on this machine")
    if request.param == "real" and not REAL_RUNTIME:
        pytest.skip("GPUCI_NVIDIA_RUNTIME does not name a real nvidia-container-runtime")
    return RUNTIMES[request.param]


@pytest.fixture
def create(machine, runtime):
    """Creates a container with these variables; answers what it saw, or the --log line."""

    def run(*variables, prefixes="annotation-prefixes = []", **keys):
        bundle, home = machine.work / "bundle", machine.work / "config"
        config = f"""[nvidia-container-runtime]
runtimes = ["{RUNC}"]
[nvidia-container-runtime.modes.cdi]
{prefixes}
"""
        settings = home / "nvidia-container-runtime/config.toml"
        machine.run("mkdir", "-p", bundle, settings.parent)
        machine.run("tee", settings, input=config)
        machine.run("rm", "-f", bundle / "config.json", machine.work / "log")
        machine.run(RUNC, "spec", "--bundle", bundle)
        spec = json.loads(machine.run("cat", bundle / "config.json").stdout)
        spec["root"] = {"path": str(machine.root), "readonly": False}
        spec["process"]["terminal"] = False
        spec["process"]["args"] = ["/usr/bin/python3", "-ISc", gpu_machine.LOOK]
        spec["process"]["env"] += variables
        machine.run("tee", bundle / "config.json", input=json.dumps(spec | keys))
        return look(machine, [f"XDG_CONFIG_HOME={home}", runtime], bundle)

    return run


def look(machine, command, bundle):
    out, log = machine.work / "out", machine.work / "log"
    line = 'exec env "$@" >$OUT 2>&1 </dev/null'
    arguments = ["--log", log, "--log-format", "json", "create", "--bundle", bundle, "c"]
    environment = os.environ | {"OUT": str(out)}
    made = machine.run("sh", "-c", line, "sh", *command, *arguments, check=False, env=environment)
    if made.returncode:
        return json.loads(machine.run("cat", log).stdout.splitlines()[-1])["msg"]
    machine.run(RUNC, "start", "c")
    deadline = time.monotonic() + 30
    while json.loads(machine.run(RUNC, "state", "c").stdout)["status"] != "stopped":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    machine.run(RUNC, "delete", "c")
    return json.loads(machine.run("cat", out).stdout)


def cap(number):
    return f"/dev/nvidia-caps/nvidia-cap{number}"


def card(number):
    """The nodes of a card that is not divided, as 1.20.0 gives them."""
    dri = f"/dev/dri/card{number + 32}", f"/dev/dri/renderD{number + 160}"
    return {f"/dev/nvidia{number}", *dri}


# What is asked for, with {0} and {1} for UUIDs of cards and {2} for one of card 2's MIG device 1;
# the nodes beside the control nodes, None for none at all.
GRANTS = [
    (["{1}"], card(1)),
    (["{0},{1}"], card(0) | card(1)),
    (["{0},{0}"], set()),
    (["all", "1"], card(1)),
    (["{2}"], {"/dev/nvidia2", cap(33), cap(34)}),
    (["2:0"], {"/dev/nvidia2", cap(31), cap(32)}),
    (["all"], card(0) | card(1) | {"/dev/nvidia2", *map(cap, (31, 32, 33, 34))}),
    (["none"], set()),
    (["void"], None),
    ([""], None),
    ([], None),
]


@pytest.mark.parametrize(("values", "granted"), GRANTS)
def test_a_container_gets_what_the_variable_names(machine, create, values, granted):
    machine.fakegpu("mig", "2", "2")
    cards = machine.cards()
    names = (cards[0]["uuid"], cards[1]["uuid"], cards[2]["mig"][1])
    seen = create(*(f"NVIDIA_VISIBLE_DEVICES={value.format(*names)}" for value in values))
    # ENXIO: the node is there and may be opened, and no driver is behind it.
    wanted = dict.fromkeys(granted | CONTROL, 6) if granted is not None else {}
    assert seen["nodes"] == wanted
    if granted is not None:
        assert seen["env"].get("NVIDIA_VISIBLE_DEVICES") == "void"


def test_a_cuda_image_without_the_variable_gets_all_cards(create):
    assert create("CUDA_VERSION=12").get("nodes").keys() == CONTROL | card(0) | card(1) | card(2)


def test_the_annotation_door_is_open_unless_it_is_shut(create):
    asks = {"annotations": {"cdi.k8s.io/x": "runtime.nvidia.com/gpu=0"}}
    shut = create("NVIDIA_VISIBLE_DEVICES=void", **asks)
    assert shut["nodes"] == {}
    opened = create("NVIDIA_VISIBLE_DEVICES=void", prefixes="", **asks)
    assert opened["nodes"].keys() == CONTROL | card(0)


@pytest.mark.parametrize(
    ("variable", "keys", "text"),
    [
        ("GPU-00000000-0000-0000-0000-000000000000", {}, "failed to get device handle from UUID"),
        ("9", {}, "failed to get device handle from index"),
        ("ALL", {}, 'identifier is not a valid UUID or index: "ALL"'),
        ("void", {"bogus": 1}, 'json: unknown field "bogus"'),
    ],
)
def test_a_create_is_refused_in_the_log(create, variable, keys, text):
    assert text in create(f"NVIDIA_VISIBLE_DEVICES={variable}", **keys)


def test_faults_of_nvml_refuse_the_create(machine, create):
    uuid = machine.cards()[1]["uuid"]
    machine.fakegpu("nvml-fault", "18")
    assert "driver/library version mismatch" in create(f"NVIDIA_VISIBLE_DEVICES={uuid}")
    machine.fakegpu("nvml-fault", "none")
    machine.fakegpu("lose", "1", "--nvml-only")
    assert "has fallen off the bus" in create(f"NVIDIA_VISIBLE_DEVICES={uuid}")
    machine.fakegpu("driver", "gone")
    assert "ERROR_LIBRARY_NOT_FOUND" in create(f"NVIDIA_VISIBLE_DEVICES={uuid}")


def test_the_version_names_the_runtime_then_runc(machine, runtime):
    lines = machine.run(runtime, "--version").stdout.splitlines()
    assert lines[0].startswith("NVIDIA Container Runtime version 1.")
    assert any(line.startswith("runc version") for line in lines)


RUNNING = """
import json
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
field = n.nvmlDeviceGetFieldValues(h, [230])[0].value.uiVal
print(json.dumps([n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetPowerUsage(h),
    n.nvmlDeviceGetMemoryInfo(h).used >> 20, field]))
"""


def test_a_card_computes_fails_and_is_reset_while_the_machine_runs(machine):
    def told():
        path = os.pathsep.join(sys.path)
        command = ["env", f"PYTHONPATH={path}", sys.executable, "-c", RUNNING]
        return json.loads(machine.run(*command).stdout)

    machine.fakegpu("busy", "1", "50")
    machine.fakegpu("memory", "1", "3000")
    assert told() == [50, 230000, 3000, 0]
    machine.fakegpu("xid", "1", "79")
    machine.fakegpu("xid", "1", "31", "--only", "nvml")
    machine.fakegpu("xid", "0", "48", "--only", "log")
    machine.fakegpu("event", "1", "0x8000", "1")
    events = machine.run("cat", "/var/lib/fake-gpu/events").stdout
    assert events.splitlines() == ["1 0x8 79", "1 0x8 31", "1 0x8000 1"]
    log = machine.run("cat", "/dev/kmsg").stdout
    assert [code in log for code in (": 79, ", ": 31, ", ": 48, ")] == [True, False, True]
    machine.fakegpu("set", "1", "field-230=1", "processes=4711 100")
    refused = machine.run(FAKEGPU, "reset", "1", check=False)
    assert "is currently in use by another process" in refused.stderr
    machine.fakegpu("set", "1", "processes=")
    machine.fakegpu("refuse-reset")
    assert machine.run(FAKEGPU, "reset", "1", check=False).returncode
    machine.fakegpu("refuse-reset", "off")
    machine.fakegpu("reset", machine.cards()[1]["uuid"])
    assert told()[3] == 0
    assert machine.run("tail", "-1", "/var/lib/fake-gpu/events").stdout == "1 0x8000 0\n"
    machine.fakegpu("hang")
    assert machine.exists("/var/lib/fake-gpu/hang") == [True]
    machine.fakegpu("boot")
    assert machine.exists("/var/lib/fake-gpu/hang") == [False]
