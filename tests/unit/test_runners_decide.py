# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which runners a machine begins, ends and waits for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.runners import labels
from ci.runners.decide import Claim, Decision, Mine, Situation, State, Want, decide
from ci.runners.labels import Common, Facts
from ci.runners.service import Job

A100 = Facts("nvidia", "a100-sxm4-80gb", 80)
T4 = Facts("nvidia", "tesla-t4", 15)
COMMON = Common("x86_64", "13.0", "580.95.05", ("lab",))
SOME = ("self-hosted", "linux", "x64", "gpu")


def job(*wanted, runner=""):
    return Job("owner/one", "build", "1", frozenset(wanted), runner)


def mine(name, *gpus, state=State.IDLE, facts=A100, stale=False):
    offered = labels.of(COMMON, [facts] * len(gpus))
    return Mine(name, gpus, offered, state, stale)


def situation(*runners, usable=("a", "b"), free=None, facts=None, **values):
    held = {gpu for one in runners for gpu in one.gpus}
    found = {gpu: (facts or {}).get(gpu, A100) for gpu in usable}
    given = {
        "mine": runners,
        "usable": found,
        "free": tuple(gpu for gpu in usable if gpu not in held) if free is None else free,
        "others": (),
        "jobs": (),
        "common": COMMON,
        "most": len(usable),
        "per_runner": 1,
    }
    return Situation(**given | values)


def test_labels_are_promises_and_name_what_all_gpus_of_the_runner_have():
    assert labels.of(COMMON, [A100, A100]) == (
        *("self-hosted", "linux", "x64", "gpu", "gpu-count-2", "gpu-type-nvidia", "cuda"),
        *("gpu-model-a100-sxm4-80gb", "gpu-memory-80gib", "cuda-13.0", "driver-580", "lab"),
    )
    mixed = labels.of(COMMON, [A100, T4])
    assert "gpu-memory-15gib" in mixed
    assert not any(one.startswith("gpu-model-") for one in mixed)
    assert labels.of(COMMON, []) == ("self-hosted", "linux", "x64", "lab")
    assert labels.of(Common("aarch64"), [Facts("amd")]) == (
        *("self-hosted", "linux", "arm64", "gpu", "gpu-count-1", "gpu-type-amd"),
    )


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (["self-hosted"], 0),
        (["gpu"], 1),
        (["cuda"], 1),
        (["gpu-model-tesla-t4"], 1),
        (["gpu", "gpu-count-2"], 2),
        (["gpu-count-16"], 16),
        (["gpu-count-0"], 1),
        (["gpu-count-x"], 1),
    ],
)
def test_a_job_asks_for_gpus_by_its_labels(wanted, count):
    assert labels.count({*wanted}, 1) == count


def test_each_free_gpu_has_a_runner_ready():
    assert decide(situation()) == Decision(begin=(("a",), ("b",)))
    assert decide(situation(mine("one", "a"))) == Decision(begin=(("b",),))
    assert decide(situation(per_runner=2, most=1)) == Decision(begin=(("a", "b"),))
    # One GPU is left over, and no runner has half of what it offers.
    three = situation(usable=("a", "b", "c"), per_runner=2, most=1)
    assert decide(three) == Decision(begin=(("a", "b"),))


def test_runners_beyond_the_gpus_have_none():
    assert decide(situation(most=4, beyond=2)).begin == (("a",), ("b",), (), ())
    assert decide(situation(usable=(), most=2, per_runner=0, beyond=2)).begin == ((), ())
    assert decide(situation(mine("cpu"), most=3, beyond=1)).begin == (("a",), ("b",))


def test_a_gpu_that_comes_back_finds_its_place_free():
    """No runner without a GPU takes it meanwhile."""
    out = situation(usable=(), most=2)
    assert decide(out) == Decision()
    assert decide(situation(most=2)).begin == (("a",), ("b",))


def test_idle_runners_that_are_too_many_end_and_busy_ones_stay():
    two = (mine("cpu"), mine("more"))
    assert decide(situation(*two, most=4, beyond=1)).end == ("cpu",)
    assert decide(situation(*two, most=4, beyond=1, jobs=(job("linux"),))).end == ("more",)
    busy = mine("cpu", state=State.BUSY)
    assert decide(situation(busy, most=4)).end == ()
    gpus = (mine("one", "a"), mine("two", "b"))
    assert decide(situation(*gpus, most=1)).end == ("one",)
    assert decide(situation(gpus[0], mine("two", "b", state=State.BUSY), most=1)).end == ("one",)


def test_a_runner_for_a_job_without_gpus_stays_until_it_has_the_job():
    found = situation(usable=(), most=2, jobs=(job("linux"),))
    assert decide(found).begin == ((),)
    assert decide(situation(mine("cpu"), usable=(), most=2, jobs=(job("linux"),))) == Decision()


def test_there_are_never_more_than_allowed():
    busy = mine("busy", "a", state=State.BUSY)
    assert decide(situation(busy, most=1)).begin == ()
    assert decide(situation(most=1)).begin == (("a",),)


def test_a_gpu_that_somebody_has_gets_no_runner():
    assert decide(situation(free=("b",))).begin == (("b",),)


def test_idle_runners_give_way_to_as_many_gpus_as_others_lack():
    two = (mine("one", "a"), mine("two", "b"))
    assert decide(situation(*two, others=(Claim(1),))) == Decision(end=("one",))
    assert decide(situation(*two, others=(Claim(2),))).end == ("one", "two")
    assert decide(situation(*two, others=(Claim(1), Claim(1)))).end == ("one", "two")
    assert decide(situation(*two, others=(Claim(1, ("b",)),))).end == ("two",)
    busy = mine("one", "a", state=State.BUSY)
    assert decide(situation(busy, two[1], others=(Claim(2),))).end == ("two",)


def test_what_is_free_is_theirs_who_wait_already():
    assert decide(situation(others=(Claim(2),))) == Decision()
    one = mine("one", "a")
    assert decide(situation(one, others=(Claim(1),))) == Decision()


def test_a_self_test_in_line_keeps_free_gpus_from_idle_runners_and_not_from_jobs():
    line = (Claim(0),)
    assert decide(situation(mine("one", "a"), others=line)) == Decision()
    assert decide(situation(others=line, jobs=(job("gpu"),))) == Decision(want=Want(1))


def test_a_job_for_two_gpus_gets_them_from_idle_runners():
    two = (mine("one", "a"), mine("two", "b"))
    wants = job(*SOME, "gpu-count-2")
    assert decide(situation(*two, jobs=(wants,))) == Decision(end=("one", "two"))
    assert decide(situation(two[0], jobs=(wants,))) == Decision(end=("one",))
    assert decide(situation(jobs=(wants,))) == Decision(begin=(("a", "b"),))
    both = mine("both", "a", "b")
    assert decide(situation(both, jobs=(wants,))) == Decision()


def test_a_runner_that_was_made_for_a_job_that_is_gone_ends():
    both = mine("both", "a", "b")
    assert decide(situation(both)).end == ("both",)
    assert decide(situation(both, jobs=(job(*SOME),))) == Decision()


def test_a_job_takes_the_smallest_runner_that_fits():
    runners = (mine("both", "a", "b"), mine("cpu"))
    jobs = (job("linux"), job(*SOME))
    assert decide(situation(*runners, jobs=jobs, most=3, beyond=1)).end == ()


def test_a_job_without_a_free_gpu_waits_in_the_machines_queue():
    busy = mine("one", "a", state=State.BUSY)
    found = situation(busy, free=(), jobs=(job(*SOME),), most=3)
    assert decide(found) == Decision(want=Want(1))
    # Not where no runner may begin.
    assert decide(situation(busy, free=(), jobs=(job(*SOME),), most=1)).want is None


def test_a_job_waits_for_what_its_labels_name_only():
    facts = {"a": A100, "b": T4}
    wants = job("gpu", "gpu-model-tesla-t4")
    assert decide(situation(facts=facts, jobs=(wants,))).begin == (("b",), ("a",))
    busy = mine("two", "b", state=State.BUSY, facts=T4)
    found = situation(busy, facts=facts, free=("a",), jobs=(wants,), most=3)
    assert decide(found) == Decision(want=Want(1, ("a",)))


def test_a_job_that_this_machine_cannot_run_keeps_nobody_waiting():
    jobs = (job("gpu-count-4"), job("windows"), job("gpu-model-h100"), job(*SOME))
    assert decide(situation(jobs=jobs)) == Decision(begin=(("a",), ("b",)))


def test_younger_jobs_do_not_take_what_an_older_one_needs():
    one = mine("one", "a")
    jobs = (job(*SOME, "gpu-count-2"), job(*SOME), job(*SOME))
    assert decide(situation(one, jobs=jobs)) == Decision(end=("one",))


def test_a_job_that_has_a_runner_asks_for_none():
    busy = mine("one", "a", state=State.BUSY)
    found = situation(busy, jobs=(job(*SOME, runner="one"),))
    assert decide(found).begin == (("b",),)


def test_runners_with_other_settings_and_with_gpus_that_are_gone_end():
    runners = (mine("old", "a", stale=True), mine("sick", "c"), mine("two", "b"))
    assert decide(situation(*runners, most=4)).end == ("old", "sick")


def test_a_unit_that_rests_ends_idle_runners_and_begins_none():
    busy, idle = mine("one", "a", state=State.BUSY), mine("two", "b")
    found = situation(busy, idle, rests=True, most=4, jobs=(job("gpu"),))
    assert decide(found) == Decision(end=("two",))


WANTED = st.sampled_from([("linux",), SOME, (*SOME, "gpu-count-2"), ("gpu-count-9",), ("x",)])


@given(
    jobs=st.lists(WANTED, max_size=6),
    states=st.lists(st.sampled_from([None, *State]), min_size=4, max_size=4),
    free=st.sets(st.sampled_from("abcd")),
    claims=st.lists(st.integers(1, 4), max_size=2),
    most=st.integers(0, 6),
    each=st.integers(0, 2),
)
def test_no_gpu_is_given_twice_and_no_busy_runner_ends(jobs, states, free, claims, most, each):
    named = zip("abcd", states, strict=True)
    runners = [mine(gpu, gpu, state=state) for gpu, state in named if state]
    held = {gpu for one in runners for gpu in one.gpus}
    found = situation(
        *runners,
        usable=tuple("abcd"),
        free=tuple(sorted(free - held)),
        jobs=tuple(job(*one) for one in jobs),
        others=tuple(map(Claim, claims)),
        most=most,
        per_runner=each,
    )
    made = decide(found)
    assert decide(found) == made
    begun = [gpu for gpus in made.begin for gpu in gpus]
    assert len(begun) == len({*begun})
    assert {*begun} <= {*found.free}
    assert not begun or not claims
    assert len(made.begin) <= max(0, most - len(runners))
    assert {*made.end} <= {one.name for one in runners if one.state is State.IDLE}
    assert len(made.end) == len({*made.end})
