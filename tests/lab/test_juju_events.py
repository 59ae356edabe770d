# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which hooks the lab's Juju runs and when, as Juju 4.0.15 was seen to; without machines."""

import time

import pytest

from tests.lab.errors import WrongUse
from tests.lab.juju import events
from tests.lab.recorder import PATH, Recorder, hooks_since, in_hook


@pytest.fixture
def play(model):
    """Add applications of recorders; does not settle."""
    Recorder.hooks.clear()
    Recorder.script.clear()

    def play(*apps: str, units: int = 1) -> None:
        for app in apps:
            model.play(app, PATH, units)

    return play


def related(model, play, units=1):
    """Applications one and two, related, with all first hooks behind them."""
    play("one", units=units)
    play("two")
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    Recorder.hooks.clear()


def test_the_leader_hears_of_its_applications_data_but_no_unit_of_its_own(model, play):
    play("one", units=2)
    model.controller.settle()
    Recorder.hooks.clear()

    def write(*application):
        return lambda hook: hook("relation-set", "-r", "1", *application, "key=value")

    in_hook(model, "one/0", write("--app"))
    assert hooks_since("one/0") == ["update-status", "peers-relation-changed one"]
    assert hooks_since("one/1") == ["peers-relation-changed one"]
    # An unchanged value fires nothing.
    in_hook(model, "one/0", write("--app"))
    assert hooks_since("one/0") == ["update-status"]
    in_hook(model, "one/0", write())
    assert hooks_since("one/0") == ["update-status"]
    assert hooks_since("one/1") == ["peers-relation-changed one/0"]


def test_an_applications_data_is_told_to_the_other_side_alone(model, play):
    related(model, play, units=2)
    in_hook(model, "one/0", lambda hook: hook("relation-set", "-r", "3", "--app", "key=value"))
    assert hooks_since("one/0") == ["update-status"]
    assert hooks_since("one/1") == []
    assert hooks_since("two/0") == ["client-relation-changed one"]


def test_further_units_enter_their_relations_in_either_order(model, play):
    play("two")
    play("one", units=3)
    model.integrations.integrate("one:server", "two:client")
    model.controller.settle()
    both = ["peers-relation-created one", "server-relation-created two"]
    entered = {unit: hooks_since(unit)[1:3] for unit in ("one/0", "one/1", "one/2")}
    assert entered == {"one/0": both, "one/1": both[::-1], "one/2": both}


def test_a_unit_that_hears_of_a_departure_at_this_moment_hears_of_it_once(model, play):
    related(model, play)
    store = model.store
    relation = store.value("SELECT relation FROM relation_end WHERE endpoint = 'client'")
    with store.transaction():
        events.end_relation(store, relation)
        store.do("UPDATE event SET state = 'running' WHERE unit = 'two/0' AND remote_unit != ''")
        events.left(store, relation, "one/0")
    queue = store.column("SELECT kind FROM event WHERE unit = 'two/0' ORDER BY id")
    assert queue == ["relation-departed", "relation-broken"]


def test_a_unit_that_is_removed_at_this_moment_hinders_no_other(model, play):
    play("one")
    with model.store.transaction():
        events.unit_gone(model.store, "one/0")
    assert model.controller._runnable({"one/0"}) == []


def test_a_removed_relation_counts_as_there_for_a_while(model, play):
    related(model, play)
    model.integrations.remove("one:server", "two:client")
    model.controller.settle()
    with pytest.raises(WrongUse, match="cannot integrate one:server two:client: already exists"):
        model.integrations.integrate("two:client", "one:server")
    found = []
    in_hook(model, "one/0", lambda hook: found.append(hook("relation-ids", "server")))
    assert found == [""]
    Recorder.hooks.clear()
    time.sleep(events.LINGER_SECONDS)
    model.integrations.integrate("two:client", "one:server")
    model.controller.settle()
    assert hooks_since("one/0")[-1] == "server-relation-changed two/0"


def test_one_command_for_several_options_is_told_twice(model, play):
    related(model, play)
    model.set_config("one", {"loud": "true", "colour": "red"}, reset=["size"])
    model.set_config("one", {"size": "4"})
    model.controller.settle()
    assert hooks_since("one/0") == ["config-changed"] * 2
    model.set_config("one", {"size": "4"})
    model.controller.settle()
    assert hooks_since("one/0") == []


def test_nobody_is_told_of_a_reset(model, play):
    related(model, play)
    model.set_config("one", {"size": "4"})
    model.controller.settle()
    Recorder.hooks.clear()
    model.set_config("one", {}, reset=["size"])
    model.controller.settle()
    assert hooks_since("one/0") == []
    found = []
    in_hook(model, "one/0", lambda hook: found.append(hook("config-get", "size")))
    assert found == ["3"]


def test_a_unit_removed_by_force_departs_from_the_others(model, play):
    related(model, play, units=2)
    model.remove_unit("one/1", force=True)
    model.controller.settle()
    assert hooks_since("one/1") == []
    assert hooks_since("one/0") == ["peers-relation-departed one/1 departing one/1"]
    assert hooks_since("two/0") == ["client-relation-departed one/1 departing one/1"]
