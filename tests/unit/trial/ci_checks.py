# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the product does with a stub CI system; test_trial_ci.py runs it.

It runs with the modules of a copy of this tree, in which the stub is registered.
"""

import pytest
from ops import testing

from ci import systems
from ci.concourse.worker import worker
from tests.unit.situations import OUTSIDE, parse, refused, state

HELD = testing.BlockedStatus("The stub is held: run stub-hold hold=false")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of its files."""
    folder = tmp_path / "stub"
    (folder / "jobs").mkdir(parents=True)
    monkeypatch.setenv("STUB_CI", str(folder))
    return folder


def has(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def unit(**options):
    return state(**{"ci_system": "stub", **options})


def hook(context, name="config_changed", **options):
    return context.run(getattr(context.on, name)(), unit(**options)).unit_status


def act(context, name, **params):
    after = context.run(context.on.action(name, params=params), unit())
    return dict(context.action_results), after.unit_status


def test_its_option_is_in_the_config_and_a_wrong_value_is_refused():
    assert parse(ci_system="stub", stub_queue="nightly").ci.queue == "nightly"
    assert refused(ci_system="stub", stub_queue="?") == "stub-queue '?' is not a queue: use main"
    # Each CI system reads its own options alone.
    assert parse(stub_queue="?").wrong == ()
    assert "`stub`: a worker of the stub" in systems.CI_SYSTEM.text


def test_it_can_be_a_worker_alone():
    assert refused(ci_system="stub", deployment_mode="web") == (
        "deployment-mode 'web' is not for ci-system=stub: use worker"
    )


def test_its_port_is_not_for_the_metrics():
    assert "4321" in refused(ci_system="stub", gpu_metrics_port=4321)
    assert parse(gpu_metrics_port=4321).wrong == ()


def test_a_new_unit_is_ready(context, rooms, folder):
    status = hook(context, "install", stub_queue="nightly")
    assert status == testing.ActiveStatus("Stub ready (queue nightly)")
    assert (folder / "service").read_text() == "nightly"
    assert (folder / "published").read_text() == "unit/0"


def test_a_value_that_cannot_be_used_leaves_its_service_as_it_is(context, rooms, folder):
    hook(context, stub_queue="nightly")
    status = hook(context, stub_queue="?")
    assert status == testing.BlockedStatus("stub-queue '?' is not a queue: use main")
    assert (folder / "service").read_text() == "nightly"


def test_a_step_that_fails_is_told_and_the_later_ones_run(context, rooms, folder):
    (folder / "data").mkdir()
    status = hook(context)
    assert status.name == "blocked"
    assert "data" in status.message
    assert (folder / "published").exists()


def test_its_action_changes_the_unit_and_its_plan_has_the_problem(context, rooms, folder):
    assert act(context, "stub-hold", hold=True) == ({"state": "held"}, HELD)
    assert hook(context) == HELD
    assert act(context, "stub-hold", hold=False)[0] == {"state": "runs"}
    assert hook(context).name == "active"


def test_a_pause_and_a_resume_count_its_jobs(context, rooms, folder):
    hook(context)
    for one in ("a", "b"):
        (folder / "jobs" / one).write_text(f"nightly/{one}")
    told, status = act(context, "pause", reason="new rack")
    assert told["state"] == "Paused: new rack (2 builds left)"
    assert status == testing.MaintenanceStatus(told["state"])
    (folder / "jobs/b").unlink()
    assert hook(context).message == "Paused: new rack (1 build left)"
    told, status = act(context, "resume")
    assert "landed" not in has(folder)
    assert status.name == "active"


def test_a_switch_to_it_and_back_removes_the_other(context, rooms, folder, monkeypatch):
    monkeypatch.setattr(worker, "name", lambda: "ci-unit-0")
    hook(context)
    gone = ("worker.retire", "worker.remove", "web.remove", "network.remove", "release.remove")
    assert [call for call in rooms.calls if call in gone] == [*gone]
    assert "database.remove" not in rooms.calls
    assert "service" in has(folder)
    after = context.run(context.on.config_changed(), state(**OUTSIDE))
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    # Its data stays, as it does when the unit changes to another CI system and back.
    assert has(folder) == ["data"]


def test_a_removal_takes_everything_away(context, rooms, folder):
    hook(context, "install")
    assert has(folder) == ["data", "program", "published", "service"]
    context.run(context.on.stop(), unit())
    context.run(context.on.remove(), unit())
    assert has(folder) == []
