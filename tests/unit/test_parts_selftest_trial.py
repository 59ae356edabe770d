# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A toolkit on trial is decided on by whichever hook sees the verdict."""

import dataclasses
import types

import pytest

from gpu_agent.diagnosis import machine as facts
from gpu_agent.model.host import Machine, Packaged, Toolkit
from gpu_selftest.check import Check, Level, Outcome
from tests.unit.selftest_charm import RUNS, worker

TRIED = {
    "machine": Machine("amd64", Toolkit("/runtime", "1.20.0")),
    "packaged": Packaged("1.20.0-1", ours=True, previous="1.19.1-1"),
}
BACK = {
    "machine": Machine("amd64", Toolkit("/runtime", "1.19.1")),
    "packaged": Packaged("1.19.1-1", ours=True, bad=("1.20.0-1",)),
}
GOES_BACK = ["No container worked with container toolkit 1.20.0-1: back to 1.19.1-1", "wrapper"]
FOLLOWED = RUNS[-1]
NO_CONTAINER = Check("lease", Level.ISOLATION, "a task", each_gpu=True, remedy="compare")


@pytest.fixture
def trying(tmp_path, monkeypatch):
    """A charm whose toolkit is on trial."""
    charm = worker(tmp_path, monkeypatch)

    def go_back():
        charm.machine = BACK["machine"]
        return charm.machine

    charm.toolkit = types.SimpleNamespace(
        roll_back=lambda *_: True,
        keep=lambda: charm.say("kept"),
        look=lambda: BACK["packaged"],
    )
    monkeypatch.setattr(facts, "machine", go_back)
    charm.report(subject="the toolkit before")
    charm.found = dataclasses.replace(charm.found, **TRIED)
    return charm


@pytest.mark.parametrize("on_start", [True, False])
@pytest.mark.parametrize("ends", ["in the hook", "after it"])
def test_a_toolkit_that_no_container_works_with_goes_in_the_hook_that_sees_it(
    trying, ends, on_start
):
    wanted = dataclasses.replace(trying.found.options, selftest_on_start=on_start)
    bad = NO_CONTAINER.result(Outcome.FAILED, "no container", gpu="GPU-0")
    tests = iter([lambda: trying.report("failed", made=(bad,)), trying.report])

    def end():
        return next(tests)()

    trying.service.ends = end
    run = ["start isolation", FOLLOWED]
    if ends == "after it":
        trying.service.ends = lambda: None
        after, calls = trying.ensure(options=wanted)
        trying.service.ends = end
        assert (calls[1:], after.packaged) == (run, TRIED["packaged"])
        end()
        run = []
    after, calls = trying.ensure(options=wanted)
    assert calls == [f"boot {on_start}", *run, *GOES_BACK, "start isolation", FOLLOWED]
    assert {"machine": after.machine, "packaged": after.packaged} == BACK
    trying.found = dataclasses.replace(trying.found, **BACK)
    assert trying.ensure(options=wanted)[1] == [f"boot {on_start}"]


def test_a_toolkit_that_a_test_outside_the_hook_has_proven_is_kept(trying):
    assert trying.ensure()[1] == RUNS
    trying.report()
    assert trying.ensure()[1] == ["boot True", "kept"]


def test_a_toolkit_that_does_not_start_goes_without_a_test(trying):
    broken = Machine("amd64", Toolkit("/runtime", ""))
    after, calls = trying.ensure(machine=broken)
    assert calls == ["boot True", GOES_BACK[0]]
    assert after.packaged == BACK["packaged"]
