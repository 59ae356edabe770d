# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU dies under a job: what its author, the next job and the operator see, and the way back."""

import pytest

from tests.lab.leases import Tasks
from tests.lab.site import READY
from tests.lab.watching import Watch

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture
def watch(site):
    """The watch; all is well again afterwards, and status says what the others expect."""
    watch = Watch(site)
    # Other files' tests may have provoked faults.
    watch.begin()
    yield watch
    watch.begin()
    site.lab.model.run_action("worker/0", "gpu-selftest", {"level": "isolation"})
    site.lab.settle()
    assert site.status() == READY


@pytest.fixture
def tasks(site):
    tasks = Tasks(site)
    yield tasks
    tasks.end()


def test_a_gpu_dies_under_a_job(site, watch, tasks):
    victim = tasks.start("victim")
    (card,) = victim.cards()
    took = watch.faults(card, ("set", str(card), "field-230=1"), ("xid", str(card), "79"))
    print(f"no lease is granted on it after {took:.1f} s")
    # The author reads in the job's own log what it was.
    said = victim.build.line(rf"\[gpu-ci\] GPU {card} failed \(", 60).string
    assert "Xid 79" in said or "recovery" in said
    assert "hardware, not your change" in said
    # The next job is sent to the other GPU, and one that wants both is told why it can't.
    other = tasks.start("other")
    assert other.cards() == [1 - card]
    assert other.end() == 0
    refused = site.task("true", params={"GPU_COUNT": "2"})
    assert refused.returncode
    assert f"({watch.uuid(card)}) is quarantined: " in refused.stdout
    # The operator: status without an event of Juju's, and what the alert is about.
    assert watch.status_says(f"1 quarantined: GPU {card} "), site.status()
    assert sum(watch.metric(r"gpuci_gpu_quarantined\{")) == 1
    # The job itself is nobody's business.
    victim.answer()
    assert victim.end() == 0
    # A reset mends the card; nobody has to say so.
    watch.fake("reset", str(card))
    assert watch.status_says("2x NVIDIA, self-test of one GPU passed"), watch.journal()
    assert watch.out() == {}
    after = tasks.start("after", GPU_COUNT="2")
    assert after.cards() == [0, 1]
    assert after.end() == 0


def test_a_jobs_own_fault_takes_nothing_from_anybody(site, watch, tasks):
    culprit = tasks.start("culprit")
    (card,) = culprit.cards()
    watch.fake("xid", str(card), "13")
    said = culprit.build.line(rf"\[gpu-ci\] GPU {card}: Xid 13", 60).string
    assert "Most often the program is wrong" in said
    assert culprit.end() == 0
    assert watch.reasons() == {}
    both = tasks.start("both", GPU_COUNT="2")
    assert both.cards() == [0, 1]
    assert both.end() == 0
