# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Foreign use of GPUs, through the real binding and a simulated libnvidia-ml.so.1."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import Card, build_nvml, write_state

ROOT = Path(__file__).parents[2]
T4 = Card(number=1, model="Tesla T4", memory_mib=15360)
MIG = Card(mig=("MIG-a", "MIG-b"))
HOLDER = "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
HOST, CONTAINER = "pid:[4026531836]", "pid:[4026532448]"
# Looks once; says how often it waited and what was given back. While it waits, `later` happens.
ASK = """
import json, pathlib, sys, time
from found import Lease
from gpu import foreign, nvml
from gpu.inventory import Inventory, State
asked = json.loads(sys.argv[1])
waits = []
def sleep(seconds):
    waits.append(seconds)
    for path, text in asked["later"].items():
        pathlib.Path(path).write_text(text)
time.sleep = sleep
gpus = nvml.read().gpus
found = foreign.look(
    Inventory(State.READY, gpus),
    lambda: {name: Lease(*lease) for name, lease in asked["leases"].items()},
    asked["known"],
    pathlib.Path(asked["root"]),
)
print(json.dumps({"found": dict(found), "waits": waits}))
"""

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs gcc, for the simulated libnvidia-ml.so.1"
)


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    return build_nvml(tmp_path_factory.mktemp("nvml"))


class Machine:
    """Two cards (an A100, a T4), and processes in a /proc of its own."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self.nvml, self.root, self.state = nvml, folder / "root", folder / "state"
        self.namespace(HOST)
        self.cards(Card(), T4)

    def cards(self, *cards: Card) -> None:
        write_state(self.state, cards)

    def namespace(self, name: str) -> None:
        link = self.root / "proc/self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def process(self, pid: int, cgroup="/user.slice/session-1.scope", name="python3", exe=""):
        folder = self.root / f"proc/{pid}"
        folder.mkdir()
        (folder / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "exe").symlink_to(exe or f"/usr/bin/{name}")

    def set(self, card: int, **values: object) -> None:
        for name, value in values.items():
            path = self.state / "gpus" / str(card) / name.replace("_", "-")
            path.write_text(f"{value}\n")

    def ask(self, leases=None, known=(), later=None) -> dict:
        asked = {
            "root": str(self.root),
            "leases": leases or {},
            "known": known,
            "later": later or {},
        }
        done = subprocess.run(
            [sys.executable, "-c", ASK, json.dumps(asked)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lib'}",
                "LD_LIBRARY_PATH": str(self.nvml),
                "FAKE_GPU_DIR": str(self.state),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def look(self, **asked) -> dict[str, str]:
        return self.ask(**asked)["found"]


@pytest.fixture
def machine(nvml, tmp_path):
    return Machine(tmp_path, nvml)


def test_idle_gpus_are_looked_at_once(machine):
    assert machine.ask() == {"found": {}, "waits": []}


def test_a_stranger_is_named_and_looked_at_twice(machine):
    machine.process(4711)
    machine.set(1, processes="4711 900")
    assert machine.ask() == {
        "found": {T4.uuid: "in use outside CI: pid 4711 (python3)"},
        "waits": [2],
    }
    assert machine.ask(known=[T4.uuid])["waits"] == []


def test_several_strangers_are_counted(machine):
    for pid in (4711, 4712, 4713):
        machine.process(pid)
    machine.set(0, processes="4711 900\n4712 1\n4713 1")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (python3) and 2 more"}


def test_a_name_cannot_bring_its_own_lines(machine):
    machine.process(4711, name="a\x1b[2J\nb")
    machine.set(0, processes="4711 900")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (a?[2J?b)"}


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/system.slice/concourse-worker.service/garden/{HOLDER}",
        f"/garden/{HOLDER}/nested/deeper",
        f"/machine.slice/cri-containerd-{HOLDER}.scope",
    ],
)
def test_a_holders_processes_are_no_strangers_wherever_they_are_below_it(machine, cgroup):
    machine.process(4711, cgroup)
    machine.set(0, processes="4711 900")
    assert machine.look(leases={HOLDER: [[Card().uuid]]}) == {}
    # A holder of another GPU can't get at this one; its processes are not for this look to judge.
    assert machine.look(leases={HOLDER: [[T4.uuid]]}) == {}
    assert machine.look(leases={"another": [[Card().uuid]]}) != {}
    assert machine.look() != {}


def test_a_stranger_beside_a_holder_is_seen(machine):
    machine.process(4711, f"/garden/{HOLDER}")
    machine.process(4712, name="ollama")
    machine.set(0, processes="4711 900\n4712 900")
    found = machine.look(leases={HOLDER: [[Card().uuid]]})
    assert found == {Card().uuid: "in use outside CI: pid 4712 (ollama)"}


def test_what_the_self_test_runs_on_the_host_is_no_stranger(machine):
    machine.process(4711, "/system.slice/gpu-ci-selftest-run.service")
    machine.set(0, processes="4711 900")
    assert machine.look(leases={"gpu-selftest-compute-0": [[Card().uuid]]}) == {}
    assert machine.look(leases={"gpu-selftest-compute-0": [[T4.uuid]]}) != {}


def test_a_job_that_was_just_ending_is_no_stranger(machine):
    machine.process(4711)
    machine.set(0, processes="4711 900")
    gone = {str(machine.state / "gpus/0/processes"): ""}
    assert machine.ask(later=gone) == {"found": {}, "waits": [2]}


def test_a_process_that_ended_between_is_none(machine):
    machine.set(0, processes="4711 900")
    assert machine.look() == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="a program that belongs to root takes root to make")
def test_services_of_the_host_do_not_count_where_root_owns_their_program(machine, tmp_path):
    program = tmp_path / "nv-hostengine"
    program.write_text("")
    machine.process(4711, name="nv-hostengine", exe=str(program))
    machine.set(0, processes="4711 900")
    assert machine.look() == {}
    os.chown(program, 1000, 1000)
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (nv-hostengine)"}


def test_a_name_alone_is_not_believed(machine, tmp_path):
    machine.process(4711, name="Xorg", exe=str(tmp_path / "python3"))
    machine.set(0, processes="4711 900")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (Xorg)"}


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        (1024, ""),
        (1638, ""),
        (1639, "dirty: 1.6 GiB taken without a process"),
        (81920, "dirty: 80.0"),
    ],
)
def test_memory_that_stays_taken_makes_a_gpu_dirty(machine, used, reason):
    machine.set(0, memory_used_mib=used)
    asked = machine.ask()
    assert asked["found"].get(Card().uuid, "").startswith(reason)
    assert bool(asked["found"]) == bool(reason)
    assert asked["waits"] == ([2] if reason else [])


def test_of_a_small_card_one_gibibyte_may_be_taken(machine):
    machine.set(1, memory_used_mib=1024)
    assert machine.look() == {}
    machine.set(1, memory_used_mib=1025)
    assert machine.look() == {T4.uuid: "dirty: 1.0 GiB taken without a process"}


def test_memory_that_is_given_back_in_time_was_not_dirty(machine):
    machine.set(0, memory_used_mib=40000)
    freed = {str(machine.state / "gpus/0/memory-used-mib"): "0\n"}
    assert machine.ask(later=freed) == {"found": {}, "waits": [2]}


def test_memory_with_a_holder_or_a_process_is_not_dirty(machine):
    machine.set(0, memory_used_mib=40000)
    assert machine.look(leases={HOLDER: [[Card().uuid]]}) == {}
    machine.process(4711, f"/garden/{HOLDER}")
    machine.set(0, processes="4711 900")
    assert machine.look(leases={HOLDER: [[T4.uuid]]}) == {}


def test_a_display_servers_memory_is_not_dirty(machine):
    machine.set(1, memory_used_mib=1500, graphics_processes="900 1400")
    assert machine.look() == {}


def test_memory_that_stays_taken_after_its_holder_is_dirty(machine):
    machine.set(0, memory_used_mib=40000)
    assert machine.look(leases={HOLDER: [[Card().uuid], True]}) == {}
    assert list(machine.look(leases={HOLDER: [[Card().uuid], False]})) == [Card().uuid]


def test_memory_that_nvml_does_not_report_is_not_dirty(machine):
    machine.set(0, memory_used_mib="N/A")
    assert machine.look() == {}


def test_a_holder_of_a_mig_device_holds_its_gpu(machine):
    machine.cards(MIG, T4)
    machine.set(0, memory_used_mib=40000)
    assert machine.look(leases={HOLDER: [["MIG-b"]]}) == {}
    assert machine.look() == {MIG.uuid: "dirty: 39.1 GiB taken without a process"}
    machine.process(4711)
    machine.set(0, processes="4711 900")
    found = machine.look(leases={HOLDER: [["MIG-b"]]})
    assert found == {MIG.uuid: "in use outside CI: pid 4711 (python3)"}


def test_a_lost_gpu_does_not_hide_the_others(machine):
    machine.process(4711)
    machine.set(0, fault="nvml-only")
    machine.set(1, processes="4711 900")
    assert list(machine.look()) == [T4.uuid]


def test_in_a_system_container_a_holders_gpu_is_left_alone(machine):
    """NVML's ids may be the host's there, and mean other processes here."""
    machine.namespace(CONTAINER)
    machine.process(4711)
    machine.set(0, processes="4711 900")
    machine.set(1, processes="812345 900")
    assert machine.look(leases={HOLDER: [[Card().uuid, T4.uuid]]}) == {}
    assert machine.look(leases={HOLDER: [[Card().uuid]]}) == {
        T4.uuid: "in use outside CI: pid 812345 (not of this machine)"
    }
