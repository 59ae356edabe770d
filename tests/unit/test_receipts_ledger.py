# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a lease's receipt says of it: sums over looks, several GPUs, shares, ends, names."""

import dataclasses

import pytest

from gpu_agent.model.card import Figures
from gpu_agent.model.decisions import TakeOut, Tell
from gpu_agent.model.observations import Look, Message, Source
from gpu_agent.reporting.receipts.account import throttles
from gpu_agent.reporting.receipts.receipt import Names
from tests.unit.receipt_rig import BUSY, IDLE, A, B, Rig, card, holding


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_a_lease_gets_one_receipt_with_all_that_was_seen(rig):
    rig.decided("c1", waited_ms=12_400)
    rig.look(95, {A: dataclasses.replace(IDLE, energy_j=1000.0, ecc_corrected=2)})
    rig.turn(held=[holding(since=100)], at=101)
    rig.look(110, energy_j=2500.0, ecc_corrected=2)
    rig.look(125, busy=40, memory_used_mib=70000, energy_j=5500.0, ecc_corrected=5, reasons=0x4)
    rig.turn(held=[], at=130)
    receipt = rig.only()
    assert (receipt.container, receipt.outcome, receipt.reason) == ("c1", "ended", "")
    assert (receipt.began, receipt.ended) == (
        "2025-11-23T12:15:00.000Z",
        "2025-11-23T12:15:30.000Z",
    )
    assert (receipt.held_s, receipt.waited_s) == (30, 12.4)
    (gpu,) = receipt.gpus
    assert (gpu.uuid, gpu.index, gpu.model) == (A, 0, "A100-SXM4-80GB")
    assert (gpu.watched_s, gpu.used_s) == (30, 30)
    # 10 s at 80 %, 15 s at 40 %, and the last look's 40 % for the 5 s after it.
    assert gpu.busy_percent == pytest.approx((10 * 80 + 20 * 40) / 30, abs=0.01)
    assert (gpu.memory_peak_mib, gpu.memory_total_mib) == (70000, 81920)
    # Two thirds of what it drew between the look before the lease and the first in it.
    assert gpu.energy_j == 1000 + 3000
    assert gpu.throttled_s == {"power cap": 20}
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (3, None)
    assert gpu.xids == ()


def test_a_lease_of_another_kind_tells_who_it_was(rig):
    """Web is not asked whose it is, and after a restart of the watch it is known still."""
    rig.names = lambda _: Names("main", "train", "unit", "1")
    rig.start()
    who = 'docker container "train"'
    job = dataclasses.replace(holding(since=100), kind="container", who=who)
    rig.turn(held=[job], at=101)
    rig.start()
    rig.turn(held=[job], at=120)
    rig.turn(held=[], at=130)
    receipt = rig.only()
    assert (receipt.kind, receipt.who, receipt.team) == ("container", who, "")


def test_what_nobody_looked_at_is_neither_idle_nor_used(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(115)
    rig.look(1000)  # the driver hung meanwhile
    rig.turn(held=[], at=1000)
    (gpu,) = rig.only().gpus
    assert (gpu.watched_s, gpu.used_s, gpu.busy_percent) == (45, 45, 80)


def test_a_gpu_that_does_not_answer_counts_as_not_looked_at(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(110)
    rig.look(120, {A: Figures(failure="it has fallen off the bus")})
    rig.turn(held=[], at=300)
    (gpu,) = rig.only().gpus
    assert (gpu.watched_s, gpu.busy_percent) == (40, 80)


def test_an_idle_lease_is_held_and_not_used(rig):
    rig.turn(held=[holding()], at=100)
    for second in range(115, 200, 15):
        rig.look(second, {A: IDLE})
    rig.turn(held=[], at=200)
    (gpu,) = rig.only().gpus
    assert (gpu.watched_s, gpu.used_s, gpu.busy_percent) == (100, 0, 0)
    assert (gpu.energy_j, gpu.ecc_corrected) == (None, None)


def test_figures_that_the_driver_does_not_tell_are_not_zero(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(110, {A: Figures()})
    rig.turn(held=[], at=115)
    (gpu,) = rig.only().gpus
    assert gpu.watched_s == 15
    told = gpu.used_s, gpu.busy_percent, gpu.memory_peak_mib, gpu.energy_j, gpu.throttled_s
    assert told == (None,) * 5
    assert "null" not in rig.path.read_text()


def test_counters_that_begin_anew_lose_nothing_that_came_after(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(110, energy_j=9000.0, ecc_uncorrected=4)
    rig.look(120, energy_j=9500.0, ecc_uncorrected=4)
    rig.look(130, energy_j=200.0, ecc_uncorrected=1)  # the driver was loaded anew
    rig.look(140, energy_j=300.0, ecc_uncorrected=1)
    rig.turn(held=[], at=140)
    (gpu,) = rig.only().gpus
    assert (gpu.energy_j, gpu.ecc_uncorrected) == (500 + 200 + 100, 1)


def test_each_gpu_of_a_lease_has_its_own_figures(rig):
    rig.turn(held=[holding(devices=(A, B))], at=100)
    rig.look(115, {A: BUSY, B: IDLE})
    rig.xid(116, 31, B)
    rig.turn(held=[], at=130)
    first, second = rig.only().gpus
    assert (first.uuid, first.used_s, first.xids) == (A, 30, ())
    assert (second.uuid, second.used_s, second.xids) == (B, 0, (31,))


def test_of_a_part_of_a_gpu_only_what_concerns_all_of_it_is_told(rig):
    rig.cards = (card(A, 0, ("MIG-1", "MIG-2")),)
    rig.turn(held=[holding(devices=("MIG-2",))], at=100)
    rig.look(115, {A: BUSY})
    rig.xid(116, 94)
    rig.turn(held=[], at=130)
    (gpu,) = rig.only().gpus
    assert (gpu.uuid, gpu.devices, gpu.xids) == (A, ("MIG-2",), (94,))
    assert (gpu.watched_s, gpu.used_s, gpu.busy_percent, gpu.energy_j) == (None,) * 4


def test_a_gpu_that_was_shared_for_a_time_is_nobodys_alone(rig):
    one, two = holding("c1"), holding("c2", since=120)
    rig.turn(held=[one], at=100)
    rig.look(110)
    rig.turn(held=[one, two], at=120)
    rig.look(125)
    rig.turn(held=[one], at=140)
    rig.look(150)
    rig.turn(held=[], at=160)
    assert [receipt.gpus[0].watched_s for receipt in rig.receipts()] == [None, None]
    assert [receipt.held_s for receipt in rig.receipts()] == [20, 60]


def test_a_device_that_is_not_watched_is_held_all_the_same(rig):
    rig.cards = ()
    rig.turn(held=[holding(devices=("GPU-new",))], at=100)
    rig.turn(held=[], at=130)
    (gpu,) = rig.only().gpus
    assert (gpu.uuid, gpu.index, gpu.watched_s) == ("GPU-new", None, None)


def test_the_selftests_containers_have_no_receipts(rig):
    rig.turn(held=[holding("gpu-ci-selftest-1", ours=True)], at=100)
    rig.look(115)
    rig.turn(held=[], at=130)
    assert rig.receipts() == []


def test_holders_that_cannot_be_told_now_have_not_gone(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(held="unknown", at=110)
    rig.turn(at=200)
    assert rig.receipts() == []
    rig.turn(held=[holding()], at=210)
    rig.turn(held=[], at=220)
    assert rig.only().held_s == 120


def test_a_lease_ends_when_its_gpus_are_no_longer_used_not_when_its_container_goes(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[holding(in_use=False)], at=160)
    rig.turn(at=162)
    assert rig.receipts() == []  # between two calls of the runtime it may look like this
    rig.turn(at=175)
    assert rig.only().held_s == 60
    rig.turn(at=90_000)
    rig.turn(held=[], at=95_000)
    assert len(rig.receipts()) == 1


def test_what_its_gpu_does_after_its_end_is_not_the_leases(rig):
    rig.turn(held=[holding()], at=100)
    rig.look(110, energy_j=1000.0)
    over = [holding(in_use=False)]
    rig.turn(held=over, at=116)
    rig.look(130, energy_j=3000.0)
    rig.look(145, energy_j=9000.0)
    rig.turn(held=over, at=150)
    receipt = rig.only()
    assert receipt.held_s == 16
    (gpu,) = receipt.gpus
    assert (gpu.watched_s, gpu.used_s) == (16, 16)
    # Of what it drew between two looks the part until its end: 6 of 20 s.
    assert gpu.energy_j == pytest.approx(2000 * 6 / 20)


def test_a_moment_without_use_splits_no_lease(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[holding(in_use=False)], at=102)
    rig.turn(held=[holding()], at=104)
    rig.turn(held=[], at=200)
    assert rig.only().held_s == 100


def test_a_session_in_a_container_that_was_over_is_a_lease_of_its_own(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(held=[holding(in_use=False)], at=160)
    rig.turn(at=180)
    rig.turn(held=[holding()], at=1000)  # fly hijack
    rig.turn(held=[], at=1030)
    assert [receipt.held_s for receipt in rig.receipts()] == [60, 30]
    assert len({receipt.key for receipt in rig.receipts()}) == 2


def test_a_later_lease_of_a_container_is_told_neither_its_wait_nor_its_kill(rig):
    rig.decided("c1", waited_ms=9000)
    rig.turn(held=[holding()], at=100)
    rig.turn(at=160)
    rig.decided("c1", "gpu-unused", reason="GPU-aaaa: not used for 10 min")
    rig.turn(held=[holding(in_use=False)], at=161)
    rig.turn(at=180)
    rig.turn(held=[dataclasses.replace(holding(), waited=9.0)], at=1000)
    rig.start()
    rig.turn(held=[dataclasses.replace(holding(), waited=9.0)], at=1001)
    rig.turn(held=[], at=1030)
    told = [(receipt.outcome, receipt.waited_s) for receipt in rig.receipts()]
    assert told == [("killed", 9.0), ("ended", None)]


def test_hardware_that_fails_under_a_lease_is_its_outcome(rig):
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    tell = Tell(A, "off the bus", "Xid 79, it has fallen off the bus", hardware=True, xid=79)
    rig.turn(decisions=[tell, TakeOut(A, "off the bus", "Xid 79", "isolation", "")], at=110)
    rig.turn(held=[], at=130)
    found = {receipt.container: receipt for receipt in rig.receipts()}
    assert found["c1"].outcome == "gpu failed"
    assert found["c1"].reason == "off the bus: Xid 79, it has fallen off the bus"
    assert found["c1"].gpus[0].xids == (79,)
    assert (found["c2"].outcome, found["c2"].gpus[0].xids) == ("ended", ())


def test_the_jobs_own_fault_is_no_failure_of_the_gpu(rig):
    rig.turn(held=[holding()], at=100)
    rig.turn(Message(110, A, Source.EVENT, xid=13), at=110)
    rig.turn(decisions=[Tell(A, "xid 13", "Xid 13, an error of the job", hardware=False, xid=13)])
    rig.turn(held=[], at=130)
    assert rig.only().outcome == "ended"
    assert rig.only().gpus[0].xids == (13,)


def test_what_only_the_kernels_log_says_which_a_job_can_forge_is_in_no_receipt(rig):
    rig.turn(held=[holding()], at=100)
    rig.xid(110, 79, source=Source.KERNEL)
    rig.xid(90, 48)  # before the lease
    rig.turn(held=[], at=130)
    assert rig.only().gpus[0].xids == ()


@pytest.mark.parametrize("kind", ["gpu-reclaim", "gpu-unused"])
def test_a_container_that_this_worker_ended_says_so(rig, kind):
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    rig.decided("c1", kind, reason="GPU-aaaa: stuck for hours", granted=[])
    rig.turn(held=[], at=130)
    found = {receipt.container: receipt for receipt in rig.receipts()}
    assert (found["c1"].outcome, found["c1"].reason) == (
        "killed", f"{kind}: GPU-aaaa: stuck for hours",
    )  # fmt: skip
    assert found["c2"].outcome == "ended"


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
def test_a_clock_that_is_set_meanwhile_hides_no_kill_and_makes_none(rig, step):
    rig.turn(held=[holding()], at=100)
    rig.clock += step
    rig.decided("c1", "gpu-reclaim", reason="stuck", granted=[])
    rig.turn(held=[], at=130)
    rig.clock -= step
    rig.turn(held=[holding(since=140.0)], at=140)
    rig.turn(held=[], at=160)
    assert [receipt.outcome for receipt in rig.receipts()] == ["killed", "ended"]


def test_the_wait_is_found_whenever_the_wrapper_writes_it_and_over_a_rotation(rig):
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    rig.decided("c1", waited_ms=1000)
    rig.turn(at=102)
    rig.oci.rename(rig.oci.with_name("oci.log.1"))
    rig.decided("c2", waited_ms=2000)
    rig.decided("c3", waited_ms="long", granted=[])
    with rig.oci.open("ab") as file:
        file.write(b'{"container": 7}\n\xff\xfe[[[[\n{"half')
    rig.turn(at=104)
    rig.turn(held=[], at=130)
    assert [receipt.waited_s for receipt in rig.receipts()] == [1, 2]


def test_a_log_that_was_emptied_is_read_from_its_beginning(rig):
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    rig.decided("c1", waited_ms=1000)
    rig.turn(at=102)
    rig.oci.write_text("")
    rig.turn(at=104)
    rig.decided("c2", waited_ms=2000)
    rig.turn(at=106)
    rig.turn(held=[], at=130)
    assert [receipt.waited_s for receipt in rig.receipts()] == [1, 2]


def test_the_wait_that_the_holding_tells_counts(rig):
    rig.turn(held=[dataclasses.replace(holding(), waited=7.5)], at=100)
    rig.turn(held=[], at=130)
    assert rig.only().waited_s == 7.5


def test_names_are_taken_as_soon_as_they_are_known(tmp_path):
    known = {}
    rig = Rig(tmp_path, names=known.get)
    rig.turn(held=[holding(), holding("c2", (B,))], at=100)
    known["c1"] = Names("main", "train", "unit", "42")
    rig.turn(at=102)
    known.clear()
    rig.turn(held=[], at=130)
    first, second = rig.receipts()
    assert (first.team, first.pipeline, first.job, first.build) == ("main", "train", "unit", "42")
    assert second.team == ""
    assert '"team"' not in rig.path.read_text().splitlines()[1]


def test_a_look_that_comes_twice_or_late_counts_once(rig):
    rig.turn(held=[holding()], at=100)
    look = Look(110, {A: BUSY})
    rig.turn(look, at=110)
    rig.turn(look, at=112)
    rig.turn(at=114)
    rig.turn(Look(105, {A: IDLE}), at=116)
    rig.turn(held=[], at=120)
    assert rig.only().gpus[0].watched_s == 20


def test_causes_of_a_lower_clock():
    # nvml.h, nvmlClocksThrottleReasons.
    assert throttles(0x1 | 0x2 | 0x10 | 0x100) == ()
    assert throttles(0x4) == ("power cap",)
    assert throttles(0x20) == throttles(0x40) == throttles(0x48) == ("thermal",)
    assert throttles(0x88) == ("power brake",)
    assert throttles(0x8) == ("hardware",)
