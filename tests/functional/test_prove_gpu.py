# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`make prove-gpu` as a whole, on a machine with simulated GPUs.

A proof that can't fail proves nothing: each comparison is also run with a difference.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.fakes import HERE as FAKES
from tests.functional import gpu_machine

ROOT = Path(__file__).parents[2]
STATE = Path("/var/lib/fake-gpu")
# What no simulated card can do: its node does not open, and nothing computes on it.
SILICON = {"open-descriptors", "cuda-process", "usage", "killed-process", "self-test-compute"}
CUDA = "/usr/local/lib/fake-gpu/cuda"
# MiB that the step `machine` allocates. That load is over before fakegpu could show it.
TRIAL = 64
# A Python with PyTorch that answers as workload/ does; WRONG is the number of wrong words.
TORCH = """\
#!/bin/sh
one='"values": 9, "inexact": 0, "wrong": 0, "largest": 0.1, "unequal": 0'
pair='"from": 0, "to": 1, "gbps": 240.0, "wrong": 0, "direct": true'
packages='"numpy": true, "onnx": false, "onnxruntime": false'
case "$*" in
*-c*) echo "{\\"torch\\": \\"2.9.1\\", \\"cuda\\": \\"13.0\\", $packages}" ;;
*" results "*) echo "{\\"formats\\": {\\"fp32\\": {$one}}}" ;;
*" rates "*) echo '{"formats": {"fp32": {"tflops": 18.5, "size": 8192}}}' ;;
*" bandwidth "*) echo '{"within": 1800.0, "to_device": 25.0, "to_host": 24.0}' ;;
*" memory "*) echo '{"bytes": 80000000000, "total": 85899345920, "wrong": WRONG, "first": 0}' ;;
*" peer "*) echo "{\\"pairs\\": [{$pair}]}" ;;
*) echo "ModuleNotFoundError: No module named 'onnx'" >&2; exit 1 ;;
esac
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and device nodes need root"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for the simulated NVML"),
]


class Site:
    """A machine with simulated GPUs, and the program on it."""

    def __init__(self, machine, folder):
        self.machine, self.folder, self.tree = machine, folder, ROOT
        self.python = sys.executable
        self.state = Path(machine.enter[1].partition("=")[2].replace("ns/mnt", f"root{STATE}"))

    def begin(self, *words):
        self.machine.fakegpu("install", *(words or ("--count", "1")))

    def list_majors(self):
        """The kernel lists the numbers of loaded drivers, which no simulation changes."""
        said = Path("/proc/devices").read_text()
        path = self.folder / "devices"
        more = "510 nvidia-uvm\n511 nvidia-caps\n"
        path.write_text(said.replace("\nBlock devices:", f"{more}\nBlock devices:"))
        self.machine.run("mount", "--bind", str(path), "/proc/devices")

    @contextlib.contextmanager
    def started(self, *steps, **variables):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PROVE_OUT": str(out), **variables}
        program = self.tree / "scripts/prove_gpu"
        with subprocess.Popen(
            [*self.machine.enter, self.python, "-S", str(program), *steps],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child:
            yield child

    def ended(self, child):
        """Its exit status and the steps by name."""
        said = child.communicate(timeout=300)[0]
        results = self.folder / "out/results.json"
        assert results.exists(), said
        print(said, (self.folder / "out/log.txt").read_text())
        whole = json.loads(results.read_text())
        return child.returncode, {step["name"]: step for step in whole["steps"]}

    def prove(self, *steps, **variables):
        with self.started(*steps, **variables) as child:
            return self.ended(child)

    @contextlib.contextmanager
    def runs_loads(self, *, frees=True, shows=True):
        """What a real card does while a process has memory on it, and after its end."""
        over = threading.Event()
        card = self.state / "gpus/0"

        def look():
            loaded = False
            while not over.wait(0.02):
                pid, _, mib = (
                    (card / "processes").read_text().strip().partition(" ")
                    if (card / "processes").exists()
                    else ("", "", "")
                )
                if pid and not alive(pid):
                    (card / "processes").unlink()
                    if loaded:
                        self.machine.fakegpu("busy", "0", "0")
                    if loaded and frees:
                        (card / "memory-used-mib").write_text("0\n")
                    loaded = False
                elif pid and not loaded and int(mib) > TRIAL:
                    loaded = True
                    (card / "memory-used-mib").write_text(f"{int(mib) + 500}\n")
                    self.machine.fakegpu("busy", "0", "97" if shows else "0")

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield {"LD_LIBRARY_PATH": CUDA}
        finally:
            over.set()
            thread.join()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "XZ"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with gpu_machine.start(tmp_path_factory) as machine:
        smi = FAKES / "nvidia-smi-standin"
        machine.run("install", "-m", "755", str(smi), "/usr/bin/nvidia-smi")
        library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
        subprocess.run(["gcc", *flags, str(FAKES / "nvml/cuda_load.c")], check=True, timeout=120)
        machine.run("install", "-D", str(library), f"{CUDA}/libcuda.so.1")
        site = Site(machine, tmp_path_factory.mktemp("prove"))
        site.list_majors()
        # It is a machine of metal; the simulation still knows that it may change it.
        hide = "mkdir -p /run/fake-gpu; mv /run/systemd/container /run/fake-gpu/container"
        machine.run("sh", "-c", hide)
        yield site


@pytest.fixture
def site(machine):
    machine.begin()
    return machine


def failures(step):
    return {
        row["name"]: (row["expected"], row["found"]) for row in step["checks"] if not row["ok"]
    }


def outcomes(steps):
    return {name: step["outcome"] for name, step in steps.items()}


def test_it_passes_what_a_simulated_gpu_can_do_and_says_what_it_can_not(site):
    site.begin("--count", "2")
    status, steps = site.prove()
    found = outcomes(steps)
    assert {name for name, outcome in found.items() if outcome == "not-run"} == SILICON
    assert {outcome for name, outcome in found.items() if name not in SILICON} == {"passed"}
    assert status == 0
    assert all(step["reason"] for name, step in steps.items() if name in SILICON)
    assert all(len(step["checks"]) > 1 for name, step in steps.items() if name not in SILICON)
    page = (site.folder / "out/real-gpu.md").read_text()
    assert page.count("| not run |") == len(SILICON)
    assert "GPU-" not in page.replace("GPU-...", "")


def test_mig_devices_are_found_and_leased(site):
    site.machine.fakegpu("mig", "0", "2")
    status, steps = site.prove("inventory", "device-nodes", "leases", "runtime", "usage")
    found = outcomes(steps)
    assert (status, found.pop("usage"), {*found.values()}) == (0, "not-run", {"passed"})
    assert ("GPU 0: MIG", "on, 2 devices") in {
        (row["name"], row["value"]) for row in steps["machine"]["figures"]
    }


def test_one_field_in_which_nvidia_smi_disagrees_fails_its_step(site):
    (site.state / "smi-says").write_text("name=NVIDIA H200\n")
    status, steps = site.prove("inventory", "driver")
    assert status == 1
    assert outcomes(steps) == {"machine": "passed", "inventory": "failed", "driver": "passed"}
    expected = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
    assert failures(steps["inventory"]) == {
        "GPU 0: model": expected,
        "GPU 0: model, by -q -x": expected,
    }
    assert "NVIDIA H200" in (site.folder / "out/real-gpu.md").read_text()


# What nvidia-smi says otherwise, and the checks that must notice.
INVENTORY = {
    "index=5": "index", "memory.total=81923": "memory in MiB", "minor_number=7": "minor number",
    "pci.bus_id=00000000:AF:00.0": "PCI address", "driver_version=1.2": "driver",
    "compute_cap=9.0": "compute capability", "product_brand=Tesla": "brand",
    "cuda_version=11.0": "CUDA version",
}  # fmt: skip
HEALTH = {
    "ecc.errors.corrected.volatile.total=1": "ECC errors, corrected_volatile",
    "ecc.errors.corrected.aggregate.total=1": "ECC errors, corrected_aggregate",
    "ecc.errors.uncorrected.volatile.total=1": "ECC errors, uncorrected_volatile",
    "ecc.errors.uncorrected.aggregate.total=[N/A]": "ECC errors, uncorrected_aggregate",
    "current_link_width=8x": "PCIe lanes", "gpu_temp=50 C": "temperature in °C",
    "enforced.power.limit=300.00": "power limit in W", "memory.used=200":
    "figures: memory used in MiB", "power.draw=200.00": "figures: power in W",
    "clocks_event_reasons.active=0x0000000000000020": "reasons for a lower clock",
}  # fmt: skip


def test_each_field_is_compared(site):
    (site.state / "smi-says").write_text("\n".join([*INVENTORY, *HEALTH]))
    status, steps = site.prove("inventory", "health", "image-requirements")
    assert status == 1
    for step, fields in (("inventory", INVENTORY), ("health", HEALTH)):
        told = {name.removeprefix("GPU 0: ") for name in failures(steps[step])}
        assert {*fields.values()} - told == set()
    # The driver is another one than the one that the conditions were made for.
    assert steps["image-requirements"]["outcome"] == "failed"


def test_what_is_wrong_on_the_machine_fails_the_step_that_looks_at_it(site):
    card = site.state / "gpus/0"
    (card / "ecc-uncorrected-volatile").write_text("2\n")
    (card / "event-types").write_text("0\n")
    site.machine.run("sh", "-c", "rm /dev/nvidia-uvm; mknod -m 666 /dev/nvidia-uvm c 510 9")
    status, steps = site.prove("self-test-quick", "events", "device-nodes", "driver-probe")
    assert status == 1
    assert "GPU 0, ecc" in failures(steps["self-test-quick"])
    assert "device-nodes" in failures(steps["self-test-quick"])
    assert "GPU 0: supported event types" in failures(steps["events"])
    assert "/dev/nvidia-uvm" in failures(steps["device-nodes"])
    assert steps["driver-probe"]["outcome"] == "passed"
    site.machine.run("rm", "/dev/nvidia-uvm")


def test_the_toolkit_is_checked_where_there_is_one(site):
    runtime = "/usr/bin/nvidia-container-runtime"
    if site.machine.exists(runtime)[0]:
        pytest.skip("this machine has a real toolkit")
    _, steps = site.prove("self-test-quick")
    left_out = {row["name"] for row in steps["self-test-quick"]["left_out"]}
    assert {"toolkit", "gpu-runtime", "runtime-config"} <= left_out
    says = 'printf "#!/bin/sh\necho NVIDIA Container Runtime version $1\n" >$0; chmod 755 $0'
    try:
        for version, outcome in (("1.17.0", "warning"), ("1.20.0", "passed"), ("", "failed")):
            site.machine.run("sh", "-c", says, runtime, version)
            status, steps = site.prove("self-test-quick")
            rows = {row["name"]: row for row in steps["self-test-quick"]["checks"]}
            assert rows["toolkit"]["found"].startswith(f"{outcome}: ")
            assert status == (outcome == "failed")
            assert not site.machine.exists("/var/lib/gpu-ci/inventory.json")[0]
    finally:
        site.machine.run("rm", runtime)


def test_a_load_is_seen_and_gone_after_its_end(site):
    with site.runs_loads() as variables:
        status, steps = site.prove("usage", "killed-process", **variables)
    assert (status, {*outcomes(steps).values()}) == (0, {"passed"})
    figures = {row["name"]: row["value"] for row in steps["usage"]["figures"]}
    assert 500 < figures["copies within the GPU, read and written"] < 3000
    assert figures["memory of a CUDA context"] == 500
    assert figures["power under load, highest"] > 380


def test_a_load_that_does_not_show_and_memory_that_stays_taken_fail(site):
    with site.runs_loads(frees=False, shows=False) as variables:
        status, steps = site.prove("usage", "killed-process", **variables)
    assert status == 1
    assert {
        "busy, in percent", "power under load, in W", "usage record: busy, in percent",
        "looks that call the loaded GPU idle", "it is gone from the figures after its end",
        "foreign use after the load",
    } <= failures(steps["usage"]).keys()  # fmt: skip
    assert steps["killed-process"]["outcome"] == "failed"


def test_a_node_that_opens_is_found_in_other_processes(site):
    site.machine.run("sh", "-c", "rm /dev/nvidia0; mknod -m 666 /dev/nvidia0 c 1 5")
    try:
        steps = ("open-descriptors", "cuda-process", "device-nodes")
        opens = {"LD_LIBRARY_PATH": CUDA, "FAKE_GPU_OPENS": "/dev/nvidia0"}
        status, found = site.prove(*steps, **opens)
        assert outcomes(found) == {
            "machine": "passed", "device-nodes": "failed", "open-descriptors": "passed",
            "cuda-process": "passed",
        }  # fmt: skip
        assert len(found["open-descriptors"]["checks"]) > 12
        assert status == 1
        # A CUDA program that does not open the node is not found, which fails.
        status, found = site.prove("cuda-process", LD_LIBRARY_PATH=CUDA)
        assert failures(found["cuda-process"]).keys() == {"while it runs"}
    finally:
        site.machine.run("rm", "/dev/nvidia0")
        (site.state / "gpus/0/processes").unlink(missing_ok=True)


@pytest.fixture
def torch(site):
    folder = site.folder / "torch"
    folder.mkdir(exist_ok=True)
    (folder / "python3").write_text(TORCH.replace("WRONG", "0"))
    (folder / "python3").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_rates_and_bandwidths_with_a_pytorch_of_the_machine(site, torch):
    site.begin("--count", "2")
    status, steps = site.prove("self-test-compute", PATH=torch)
    assert (status, steps["self-test-compute"]["outcome"]) == (0, "passed")
    figures = {
        (row["name"], row["value"], row["unit"]) for row in steps["self-test-compute"]["figures"]
    }
    assert {
        ("GPU 0, matrix-rate-fp32", 18.5, "TFLOPS"), ("GPU 1, copy-bandwidth", 1800, "GB/s"),
        ("GPU 0, host-bandwidth", 24, "GB/s"), ("slowest copy between two GPUs", 240, "GB/s"),
    } <= figures  # fmt: skip
    assert "onnxruntime" in {row["name"] for row in steps["self-test-compute"]["left_out"]}


def test_a_wrong_word_in_memory_fails(site, torch):
    (site.folder / "torch/python3").write_text(TORCH.replace("WRONG", "1"))
    status, steps = site.prove("self-test-compute", PATH=torch)
    assert (status, failures(steps["self-test-compute"]).keys()) == (
        1, {"GPU 0, memory-pattern", "memory-pattern has a result"},
    )  # fmt: skip


def test_a_step_that_hangs_is_ended_and_the_others_run(site):
    with site.started("inventory", "driver", "events", PROVE_STEP_SECONDS="9") as child:
        while not child.stdout.readline().startswith("passed   machine"):
            pass
        # `fakegpu hang` would need as long to start as the next step takes.
        (site.state / "hang").write_text("")
        assert child.stdout.readline().startswith("failed   inventory")
        site.machine.fakegpu("unhang")
        status, steps = site.ended(child)
    assert status == 1
    assert outcomes(steps) == {
        "machine": "passed", "inventory": "failed", "driver": "passed", "events": "passed",
    }  # fmt: skip
    assert steps["inventory"]["reason"] == "it did not end within 9 s"
    assert 9 <= steps["inventory"]["seconds"] < 14


def test_the_limit_of_all_steps_holds(site):
    (site.state / "smi-hangs").write_text("")
    began = time.monotonic()
    status, steps = site.prove(PROVE_SECONDS="5")
    assert time.monotonic() - began < 15
    assert status == 1, "nothing was proven"
    assert {*outcomes(steps).values()} == {"not-run"}
    assert "time for all steps" in steps["machine"]["reason"]


def test_a_driver_that_does_not_answer_ends_it_after_the_first_step(site):
    (site.state / "nvml-init-rc").write_text("18\n")
    status, steps = site.prove()
    assert status == 1
    assert outcomes(steps)["machine"] == "failed"
    assert {outcome for name, outcome in outcomes(steps).items() if name != "machine"} == {
        "not-run"
    }


def refused(site, *words):
    with site.started(*words) as child:
        said = child.communicate(timeout=20)[0]
    assert not (site.folder / "out").exists()
    return child.returncode, said


def test_a_worker_is_left_alone(site):
    site.machine.run("sh", "-c", "mkdir -p /etc/gpu-ci; echo {} >/etc/gpu-ci/policy.json")
    try:
        status, said = refused(site)
        assert (status, "this machine is a worker" in said) == (2, True)
    finally:
        site.machine.run("rm", "-r", "/etc/gpu-ci")


def test_a_step_that_does_not_exist_is_named(site):
    status, said = refused(site, "helth")
    assert (status, "there is no step helth" in said) == (2, True)


def test_the_guide_names_each_step_and_its_limit():
    program = (ROOT / "scripts/prove_gpu/program.py").read_text()
    guide = (ROOT / "docs/how-to/prove-on-a-real-gpu.md").read_text()
    steps = re.findall(r'\("([a-z-]+)", "[a-z]+\.[a-z]+", ([0-9]+)\)', program)
    rows = re.findall(r"^\| `([a-z-]+)` \| .* \| ([0-9]+) s \|$", guide, re.MULTILINE)
    assert len(steps) == 17
    assert steps == rows


def test_without_a_driver_it_says_so_at_once(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/prove_gpu"],
        env={"PROVE_OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert (done.returncode, "has no NVIDIA driver" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def travelled(site, tmp_path):
    """A copy of the tree as it goes to another machine, with a kit of what is installed here."""
    import jinja2

    for part in ("scripts", "lib", "tests/fakes"):
        shutil.copytree(ROOT / part, tmp_path / part)
    site.tree = tmp_path
    yield tmp_path, Path(jinja2.__file__).parents[1]
    site.tree, site.python = ROOT, sys.executable


def interpreter(name):
    """The path of an interpreter; a name on PATH may be a version manager's, which has none."""
    if found := shutil.which(name):
        ask = [found, "-c", "import sys; print(sys.executable)"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=20)
        if not done.returncode:
            return done.stdout.strip()
    pytest.skip(f"needs {name}")


@pytest.mark.parametrize("version", ["", "3.10", "3.12", "3.13", "3.14"])
def test_it_runs_from_a_copy_of_the_tree_without_compiled_packages(site, travelled, version):
    tree, packages = travelled
    site.python = interpreter(f"python{version}") if version else sys.executable
    status, said = refused(site)
    assert (status, "make prove-kit" in said) == (2, True)
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("jinja2", "markupsafe", "tenacity", "tomlkit"):
        shutil.copytree(packages / name, tree / ".prove-kit" / name, ignore=ignore)
    shutil.copy(packages / "pynvml.py", tree / ".prove-kit")
    steps = ("inventory", "health", "leases", "runtime", "container", "self-test-quick")
    status, found = site.prove(*steps)
    assert (status, {*outcomes(found).values()}) == (0, {"passed"})
