# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""fakegpu and the NVIDIA runtimes, in a private mount namespace that stands for a machine."""

import json
import os
import shutil
import subprocess

import pytest

from tests.fakes import STANDIN_RUNTIME
from tests.functional import gpu_machine
from tests.functional.gpu_machine import REAL_RUNTIME

RUNC = shutil.which("runc", path="/usr/local/sbin:/usr/sbin:/usr/bin:/opt/concourse/current/bin")
RUNTIMES = {"stand-in": str(STANDIN_RUNTIME), "real": "/usr/bin/nvidia-container-runtime"}
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and device nodes need root")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with three cards, the last of them divided in two."""
    with gpu_machine.start(tmp_path_factory) as machine:
        machine.fakegpu("install", "--count", "3")
        machine.fakegpu("mig", "2", "2")
        yield machine


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


# ---- containers ----


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    if RUNC is None:
        pytest.skip("no runc on this machine")
    if request.param == "real" and not REAL_RUNTIME:
        pytest.skip("GPUCI_NVIDIA_RUNTIME does not name a real nvidia-container-runtime")
    return RUNTIMES[request.param]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """A container's folder, which the machine sees too, with what runc has by itself in it."""
    folder = tmp_path_factory.mktemp("bundle")
    subprocess.run([RUNC, "spec", "--bundle", folder], check=True, timeout=60)
    spec = json.loads((folder / "config.json").read_text())
    spec["process"]["terminal"] = False
    spec["process"]["args"] = ["/usr/bin/python3", "-ISc", gpu_machine.LOOK]
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


CONFIG = """[nvidia-container-runtime]
runtimes = ["{runc}"]
[nvidia-container-runtime.modes.cdi]
{prefixes}
"""
LIFE = """
cd "$1"; runc=$2; shift 2
XDG_CONFIG_HOME=$PWD "$@" --log "$PWD/log" --log-format json create --bundle "$PWD" c \
    >out 2>&1 </dev/null || exit 9
"$runc" start c
for i in $(seq 600); do
    case $("$runc" state c) in *'"status": "stopped"'*) break ;; esac
    sleep 0.05
done
"$runc" delete c
"""


@pytest.fixture
def create(machine, runtime, bundle):
    """Creates a container with these variables; answers what it saw, or the --log line."""

    def run(*variables, prefixes="annotation-prefixes = []", **keys):
        settings = bundle / "nvidia-container-runtime/config.toml"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(CONFIG.format(runc=RUNC, prefixes=prefixes))
        (bundle / "log").unlink(missing_ok=True)
        spec = json.loads((bundle / "spec.json").read_text())
        spec["root"] = {"path": str(machine.root), "readonly": False}
        spec["process"]["env"] += variables
        (bundle / "config.json").write_text(json.dumps(spec | keys))
        done = machine.run("sh", "-ec", LIFE, "sh", bundle, RUNC, runtime, check=False)
        if done.returncode == 9:
            return json.loads((bundle / "log").read_text().splitlines()[-1])["msg"]
        assert done.returncode == 0, done.stderr
        return json.loads((bundle / "out").read_text())

    return run


def cap(number):
    return f"/dev/nvidia-caps/nvidia-cap{number}"


def card(number):
    """The nodes of a card that is not divided, as 1.20.0 gives them."""
    dri = f"/dev/dri/card{number + 32}", f"/dev/dri/renderD{number + 160}"
    return {f"/dev/nvidia{number}", *dri}


ALL = card(0) | card(1) | {"/dev/nvidia2", *map(cap, (31, 32, 33, 34))}
# What is asked for, with {0} and {1} for UUIDs of cards and {2} for one of card 2's MIG device 1;
# the nodes beside the control nodes, None for none at all.
GRANTS = [
    (["{1}"], card(1)),
    (["{0},{1}"], card(0) | card(1)),
    (["{0},{0}"], set()),
    (["all", "1"], card(1)),
    (["{2}"], {"/dev/nvidia2", cap(33), cap(34)}),
    (["2:0"], {"/dev/nvidia2", cap(31), cap(32)}),
    (["all"], ALL),
    (["none"], set()),
    (["void"], None),
    ([""], None),
    ([], None),
]


@pytest.mark.parametrize(("values", "granted"), GRANTS)
def test_a_container_gets_what_the_variable_names(machine, create, values, granted):
    cards = machine.cards()
    names = (cards[0]["uuid"], cards[1]["uuid"], cards[2]["mig"][1])
    seen = create(*(f"NVIDIA_VISIBLE_DEVICES={value.format(*names)}" for value in values))
    # ENXIO: the node is there and may be opened, and no driver is behind it.
    wanted = dict.fromkeys(granted | CONTROL, 6) if granted is not None else {}
    assert seen["nodes"] == wanted
    if granted is not None:
        assert seen["env"].get("NVIDIA_VISIBLE_DEVICES") == "void"


def test_a_cuda_image_without_the_variable_gets_all_cards(create):
    seen = create("CUDA_VERSION=12").get("nodes")
    assert seen.keys() == CONTROL | ALL


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
    machine.fakegpu("restore", "1")
    machine.fakegpu("driver", "gone")
    assert "ERROR_LIBRARY_NOT_FOUND" in create(f"NVIDIA_VISIBLE_DEVICES={uuid}")
    machine.fakegpu("driver", "loaded")


def test_the_version_names_the_runtime_then_runc(machine, runtime):
    lines = machine.run(runtime, "--version").stdout.splitlines()
    assert lines[0].startswith("NVIDIA Container Runtime version 1.")
    assert any(line.startswith("runc version") for line in lines)
