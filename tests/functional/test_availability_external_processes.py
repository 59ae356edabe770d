# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Foreign use of GPUs, through the real binding and a simulated libnvidia-ml.so.1."""

import shutil

import pytest

from tests import once
from tests.fakes import Card, build_nvml
from tests.functional.foreign_machine import CONTAINER, HOLDER, MIG, T4, Machine

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None, reason="needs gcc, for the simulated libnvidia-ml.so.1"
)


@pytest.fixture(scope="module")
def nvml():
    return once.made("nvml", build_nvml)


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
    assert machine.ask(known={T4.uuid: "in use outside CI: pid 1 (x)"})["waits"] == []


def test_several_strangers_are_counted(machine):
    for pid in (4711, 4712, 4713):
        machine.process(pid)
    machine.set(0, processes="4711 900\n4712 1\n4713 1")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (python3) and 2 more"}


def test_a_name_cannot_bring_its_own_lines(machine):
    machine.process(4711, name=b"a\x1b[2J\nb")
    machine.set(0, processes="4711 900")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (a?[2J?b)"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff\x80", "\ufffd\ufffd"),
        (b"a\xe2\x80\xaeb", "a?b"),
        (b"x" * 4096, "x" * 15),
        (b"\n", "?"),
    ],
    ids=["no UTF-8", "right to left", "long", "newline"],
)
def test_a_name_may_have_any_bytes(machine, name, shown):
    """One that is no UTF-8 would end each event of the charm in an error."""
    machine.process(4711, name=name)
    machine.process(4712, f"/garden/{HOLDER}", name=name)
    machine.set(0, processes="4711 900\n4712 900")
    found = machine.look(leases={HOLDER: [[Card().uuid]]})
    assert found == {Card().uuid: f"in use outside CI: pid 4711 ({shown})"}


def test_a_process_that_cannot_be_looked_at_is_a_stranger(machine):
    machine.process(4711, f"/garden/{HOLDER}")
    (machine.root / "proc/4711/cgroup").unlink()
    (machine.root / "proc/4711/cgroup").mkdir()
    machine.set(0, processes="4711 900")
    found = machine.look(leases={HOLDER: [[Card().uuid]]})
    assert found == {Card().uuid: "in use outside CI: pid 4711 (unknown: Is a directory)"}


JOB = "gpu-run-0123456789ab.scope"


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


def test_who_has_left_his_gpu_run_is_a_stranger(machine):
    group = "/gpurun.slice/gpu-run-0123456789ab.scope"
    leases = {"gpu-run-0123456789ab.scope": [[Card().uuid], True, group]}
    machine.process(4711, group)
    machine.set(0, processes="4711 900")
    assert machine.look(leases=leases) == {}
    left = "/user.slice/user-1001.slice/user@1001.service/app.slice/run-r1.scope"
    machine.process(4712, left, name=b"python")
    machine.set(0, processes="4711 900\n4712 900")
    found = machine.look(leases=leases)
    assert found == {Card().uuid: "in use outside CI: pid 4712 (python)"}


@pytest.mark.parametrize(
    ("name", "cgroup"),
    [
        (JOB, f"/user.slice/user-1001.slice/user@1001.service/app.slice/{JOB}"),
        (JOB, f"/docker/{'a' * 64}/{JOB}"),
        (HOLDER, f"/user.slice/user-1001.slice/user@1001.service/app.slice/libpod-{HOLDER}.scope"),
    ],
    ids=["a person's scope", "a container's own group", "a container's name"],
)
def test_a_control_group_that_a_person_named_hides_nobody(machine, name, cgroup):
    """As by `systemd-run --user --scope --unit=NAME`, with a name from `gpu-run --list`."""
    machine.process(4711, cgroup)
    machine.set(0, processes="4711 900")
    group = f"/gpurun.slice/{JOB}" if name == JOB else ""
    assert machine.look(leases={name: [[Card().uuid], True, group]}) != {}


def test_a_stranger_beside_a_holder_is_seen(machine):
    machine.process(4711, f"/garden/{HOLDER}")
    machine.process(4712, name=b"ollama")
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


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/garden/{HOLDER}x",
        f"/garden/x{HOLDER}",
        f"/garden/x-{HOLDER}",
        f"/machine.slice/cri-containerd-{HOLDER}.scope.x",
        f"/machine.slice/{HOLDER}.service",
        f"/garden/{HOLDER[:-1]}",
    ],
)
def test_a_name_that_has_a_holders_in_it_is_not_the_holder(machine, cgroup):
    machine.process(4711, cgroup)
    machine.set(0, processes="4711 900")
    assert machine.look(leases={HOLDER: [[Card().uuid]]}) != {}


def test_a_name_alone_is_not_believed(machine, tmp_path):
    machine.process(4711, name=b"Xorg", exe=str(tmp_path / "python3"))
    machine.set(0, processes="4711 900")
    assert machine.look() == {Card().uuid: "in use outside CI: pid 4711 (Xorg)"}


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        (1024, ""),
        (1638, ""),
        (1639, "in use outside CI: 1.6 GiB taken without a process"),
        (81920, "in use outside CI: 80.0"),
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
    assert machine.look() == {T4.uuid: "in use outside CI: 1.0 GiB taken without a process"}


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
    assert machine.look() == {MIG.uuid: "in use outside CI: 39.1 GiB taken without a process"}
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


# ---- what can't be told ----

KNOWN = {
    Card().uuid: "in use outside CI: pid 4711 (python3)",
    T4.uuid: "in use outside CI: 3.0 GiB taken",
}


def test_what_is_over_is_known_no_more(machine):
    assert machine.ask(known=KNOWN) == {"found": {}, "waits": []}


def test_without_the_leases_what_is_known_stays_and_nothing_is_new(machine):
    machine.process(4711)
    machine.set(1, processes="4711 900")
    assert machine.ask(leases=None, known=KNOWN) == {"found": KNOWN, "waits": []}
    assert machine.ask(leases=None) == {"found": {}, "waits": []}


@pytest.mark.parametrize("known", [{}, KNOWN])
def test_without_nvml_what_is_known_stays(machine, known):
    broken = {str(machine.state / "nvml-init-rc"): "999\n"}
    assert machine.ask(known=known, then=broken) == {"found": known, "waits": []}


def test_of_a_gpu_that_does_not_answer_what_is_known_stays_and_the_other_is_looked_at(machine):
    silent = {str(machine.state / "gpus/0/fault"): "nvml-only\n"}
    kept = {Card().uuid: KNOWN[Card().uuid]}
    assert machine.ask(known=KNOWN, then=silent) == {"found": kept, "waits": []}


def test_of_a_gpu_that_is_lost_what_is_known_stays(machine):
    machine.set(0, fault="nvml-only")
    assert machine.look(known=KNOWN) == {Card().uuid: KNOWN[Card().uuid]}


@pytest.mark.parametrize("holder", [HOLDER, "gpu-selftest-compute-0"])
def test_where_a_holders_processes_are_out_of_sight_what_is_known_stays(machine, holder):
    machine.namespace(CONTAINER)
    found = machine.look(leases={holder: [[Card().uuid]]}, known=KNOWN)
    assert found == {Card().uuid: KNOWN[Card().uuid]}
