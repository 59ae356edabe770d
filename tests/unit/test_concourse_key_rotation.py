# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keys that take turns: at no moment does one side show a key that the other does not take."""

import dataclasses

import pytest
from ops import testing

from ci.concourse import rsa_keys as keys
from ci.concourse.plan import messages
from lifecycle.drain_record import DrainRecord
from relations import tsa as relations_tsa
from relations import worker_view as sights
from tests.unit.exchange_rig import Pair
from tests.unit.situations import HOST_KEY, WORKER_KEY, database, state, tsa, workers


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    pair.web.run()
    pair.worker.run()
    pair.settle()
    assert pair.worker.status == testing.ActiveStatus("Worker ready")
    assert pair.web.status == testing.ActiveStatus("Web ready")
    return pair


def shown(pair):
    """The key that the worker's process shows: its files' unless another was noted."""
    former = pair.worker.folder / "worker_key.former.pub"
    if former.exists():
        return former.read_text().strip()
    return keys.public_key_line((pair.worker.folder / "worker_key").read_text())


def watch(pair, monkeypatch, moments):
    """After each hook of the web, note whether it takes the key that the worker shows."""
    real = pair.web.run

    def run(event=None):
        real(event)
        moments.append(shown(pair) in pair.web.authorized)

    monkeypatch.setattr(pair.web, "run", run)


def test_a_workers_new_key_is_taken_before_it_is_shown_and_the_old_one_revoked(pair, monkeypatch):
    moments = []
    watch(pair, monkeypatch, moments)
    old = shown(pair)
    done = pair.worker.action("rotate-worker-key")
    assert done["state"] == "begun"
    assert shown(pair) == old, "web has not taken the new one yet"
    assert pair.worker.status.message == f"Worker ready ({messages.text('key-rotation-worker')})"
    pair.settle()
    new = shown(pair)
    assert new != old
    assert done["fingerprint"] == sights.fingerprint(new)
    assert pair.web.authorized == (new,)
    assert moments, "web has heard of it"
    assert all(moments)
    assert pair.worker.status == testing.ActiveStatus("Worker ready")
    assert sorted(path.name for path in pair.worker.folder.iterdir()) == ["worker_key"]
    assert pair.settle() == 0
    for side in (pair.worker, pair.web):
        assert "PRIVATE" not in str(side.tells)


def test_the_former_key_stays_taken_until_web_has_let_in_the_worker_with_the_new_one(pair):
    old = shown(pair)
    pair.worker.action("rotate-worker-key")
    pair.worker.rooms(connected=False)
    pair.settle()
    assert old in pair.web.authorized
    assert len(pair.web.authorized) == 2
    pair.worker.rooms(connected=True)
    pair.worker.run()
    pair.settle()
    assert old not in pair.web.authorized
    assert len(pair.web.authorized) == 1


def test_the_former_key_stays_taken_while_the_process_was_not_restarted(pair):
    old = shown(pair)
    pair.worker.action("rotate-worker-key")
    pair.worker.hand_in(trusted=lambda: None)
    pair.settle()
    assert shown(pair) == old
    assert {old, *pair.web.authorized} == {*pair.web.authorized}
    pair.worker.hand_in(trusted=pair.worker.trusted)
    pair.worker.run()
    pair.settle()
    assert pair.web.authorized == (shown(pair),)
    assert shown(pair) != old


def test_a_second_call_goes_on_with_the_first(pair):
    first = pair.worker.action("rotate-worker-key")
    second = pair.worker.action("rotate-worker-key")
    assert second["state"] == "goes on: a new key already waits for web to take it"
    assert first["fingerprint"] == second["fingerprint"]
    pair.settle()
    assert sights.fingerprint(shown(pair)) == first["fingerprint"]
    third = pair.worker.action("rotate-worker-key")
    assert third["state"] == "begun"
    assert third["fingerprint"] != first["fingerprint"]


def test_it_goes_on_where_the_hook_was_killed_between_its_two_files(pair):
    """The former key was noted, and the new one has not its name yet."""
    old = shown(pair)
    pair.worker.action("rotate-worker-key")
    (pair.worker.folder / "worker_key.former.pub").write_text(f"{old}\n")
    pair.worker.run()
    assert shown(pair) == old
    pair.settle()
    assert shown(pair) != old
    assert pair.web.authorized == (shown(pair),)


def refused(side, name):
    with pytest.raises(testing.ActionFailed) as failed:
        side.action(name)
    return failed.value.message


@pytest.mark.parametrize(
    ("option", "value"),
    [("worker-private-key", "secret:cvq0000000000000000g"), ("tsa-hosts", "ci.example.com:2222")],
)
def test_the_key_of_a_concourse_outside_juju_is_not_ours_to_change(pair, option, value):
    config = {**pair.worker.state.config, option: value}
    pair.worker.state = dataclasses.replace(pair.worker.state, config=config)
    assert refused(pair.worker, "rotate-worker-key").startswith(f"{option} is set. ")
    assert not (pair.worker.folder / "worker_key.next").exists()


def test_a_web_that_tells_nothing_of_the_keys_it_takes_is_no_ground_for_another(context, rooms):
    before = state(relations=[tsa()])
    rooms.concourse.keys.ensure("")
    with pytest.raises(testing.ActionFailed, match="web/0 does not report which keys it accepts"):
        context.run(context.on.action("rotate-worker-key"), before)


def test_a_unit_without_a_worker_says_so(context, rooms):
    with pytest.raises(testing.ActionFailed, match="has no worker"):
        context.run(context.on.action("rotate-worker-key"), state("web"))


def test_the_worker_knows_the_tsas_new_key_before_web_shows_it(pair):
    done = pair.web.action("rotate-tsa-key", force=False)
    assert (done["state"], done["waits-for"]) == ("begun", "worker/0")
    assert pair.web.web.secrets.tsa_next_host_key
    assert pair.web.tells["tsa-public-key"] == HOST_KEY
    note = messages.text("key-rotation-tsa", units="worker/0", application="web")
    assert pair.web.status.message == f"Web ready ({note})"
    pair.worker.hears(pair.web.tells)
    assert pair.worker.worker.tsa_public_keys == (HOST_KEY, done["next-public-key"])
    assert pair.web.tells["tsa-public-key"] == HOST_KEY
    pair.settle()
    assert pair.web.tells["tsa-public-key"] == done["next-public-key"]
    assert "tsa-next-public-key" not in pair.web.tells
    assert keys.public_key_line(pair.web.web.secrets.tsa_host_key) == done["next-public-key"]
    assert pair.web.web.secrets.tsa_next_host_key == ""
    assert pair.worker.worker.tsa_public_keys == (done["next-public-key"],)
    assert pair.web.status == testing.ActiveStatus("Web ready")
    assert pair.settle() == 0


def test_a_worker_that_did_not_restart_holds_the_tsas_new_key_up_until_it_is_forced(
    pair, monkeypatch
):
    pair.web.action("rotate-tsa-key", force=False)
    pair.worker.hand_in(trusted=lambda: None)
    pair.settle()
    for _ in range(2):
        pair.web.run()
        assert pair.web.tells["tsa-public-key"] == HOST_KEY
    again = pair.web.action("rotate-tsa-key", force=False)
    assert again["state"] == "goes on: a new key already waits for the workers"
    forced = pair.web.action("rotate-tsa-key", force=True)
    assert forced["next-public-key"] == again["next-public-key"]
    assert forced["waits-for"] == "nobody"
    assert pair.web.tells["tsa-public-key"] == forced["next-public-key"]


def test_a_departed_worker_is_waited_for_no_more(pair):
    done = pair.web.action("rotate-tsa-key", force=False)
    gone = dataclasses.replace(pair.web.relation(), remote_units_data={})
    others = [one for one in pair.web.state.relations if one.id != gone.id]
    pair.web.state = dataclasses.replace(pair.web.state, relations=[*others, gone])
    pair.web.run()
    assert pair.web.tells["tsa-public-key"] == done["next-public-key"]
    assert pair.web.authorized == ()


def test_the_leader_alone_gives_the_tsa_another_key(pair):
    pair.web.state = dataclasses.replace(pair.web.state, leader=False)
    with pytest.raises(testing.ActionFailed, match="juju run web/leader rotate-tsa-key"):
        pair.web.action("rotate-tsa-key", force=False)


def test_a_unit_without_web_has_no_tsa_key(context, rooms):
    with pytest.raises(testing.ActionFailed, match="it runs no web yet"):
        context.run(context.on.action("rotate-tsa-key", params={"force": False}), state())


def test_another_web_unit_shows_the_new_key_when_the_leader_says_so(pair):
    """The secret is the same; a unit that is not the leader decides nothing."""
    done = pair.web.action("rotate-tsa-key", force=False)
    pair.worker.hears(pair.web.tells)
    pair.web.state = dataclasses.replace(pair.web.state, leader=False)
    pair.settle()
    assert pair.web.tells["tsa-public-key"] == HOST_KEY
    (secret,) = pair.web.state.secrets
    content = dict(secret.latest_content or secret.tracked_content)
    content["tsa-host-key"] = content.pop("tsa-next-host-key")
    switched = dataclasses.replace(secret, latest_content=content)
    pair.web.state = dataclasses.replace(pair.web.state, secrets=[switched])
    pair.web.run()
    assert pair.web.tells["tsa-public-key"] == done["next-public-key"]


def test_web_and_worker_in_one_unit_rotate_both_keys(context, rooms):
    before = context.run(context.on.update_status(), state("all"))
    begun = context.run(context.on.action("rotate-tsa-key", params={"force": False}), before)
    new = context.action_results["next-public-key"]
    assert rooms.worker.tsa_public_keys == (HOST_KEY, new)
    after = context.run(context.on.update_status(), begun)
    assert keys.public_key_line(rooms.web.secrets.tsa_host_key) == new
    assert rooms.worker.tsa_public_keys == (new,)
    assert after.unit_status == testing.ActiveStatus("Web and worker ready")


def test_another_unit_with_a_web_and_a_worker_of_its_own_is_waited_for(context, rooms):
    peers = testing.PeerRelation("peers", peers_data={1: {}})
    begin = state("all", [database()])
    begin = dataclasses.replace(begin, relations=[peers, database()], planned_units=2)
    before = context.run(context.on.update_status(), begin)
    begun = context.run(context.on.action("rotate-tsa-key", params={"force": False}), before)
    assert context.action_results["waits-for"] == "unit/0, unit/1"
    after = context.run(context.on.update_status(), begun)
    assert rooms.web.secrets.tsa_next_host_key, "unit/1 does not know it"
    line = context.action_results["next-public-key"]
    knows = f"- {sights.fingerprint(line)}"
    told = dataclasses.replace(
        after.get_relation(peers.id), peers_data={1: {"tsa-keys-known": knows}}
    )
    rest = [one for one in after.relations if one.id != peers.id]
    context.run(
        context.on.relation_changed(told),
        dataclasses.replace(after, relations=[*rest, told]),
    )
    assert keys.public_key_line(rooms.web.secrets.tsa_host_key) == line


@pytest.mark.parametrize("bad", ["x", f"{WORKER_KEY}\n{HOST_KEY}", f'command="id" {HOST_KEY}'])
def test_a_second_key_that_is_none_is_refused_in_words(context, rooms, bad):
    relation = workers(WORKER_KEY)
    data = {0: {"worker-public-key": WORKER_KEY, "worker-next-public-key": bad}}
    relation = dataclasses.replace(relation, remote_units_data=data)
    before = state("web", [database(), relation])
    after = context.run(context.on.relation_changed(relation), before)
    assert rooms.web.worker_keys == (WORKER_KEY,)
    assert "refused worker-next-public-key of worker/0: is no" in after.unit_status.message


def test_what_is_no_key_of_a_web_to_come_is_refused_and_the_others_stay(context, rooms):
    relation = tsa(tsa_next_public_key=f"{HOST_KEY}\n{WORKER_KEY}")
    after = context.run(context.on.relation_changed(relation), state(relations=[relation]))
    assert rooms.worker.tsa_public_keys == (HOST_KEY,)
    assert after.unit_status.message.startswith(
        "Worker ready (refused tsa-next-public-key of web/0"
    )


def test_a_web_without_a_worker_does_not_ask_whether_that_rests(context, rooms):
    class Drain(DrainRecord):
        def rests(self):
            if "web.apply" in rooms.calls:
                raise OSError("asked in vain")
            return super().rests()

    known = rooms.records.drain
    rooms.hand_in(drain=Drain(known.folder, known.clock))
    before = state("web", [database(), workers()])
    after = context.run(context.on.update_status(), before)
    assert "web.apply" in rooms.calls
    assert "asked in vain" not in after.unit_status.message


def test_of_several_webs_each_has_to_take_a_key(context, rooms):
    one = sights.fingerprint(WORKER_KEY)
    units = {
        number: {
            "tsa-host": f"10.0.0.{number}:2222", "tsa-public-key": HOST_KEY,
            "worker-keys-taken": told,
        }
        for number, told in enumerate([f"- {one}", "-"])
    }  # fmt: skip
    relation = dataclasses.replace(tsa(), remote_units_data=units)
    with context(context.on.relation_changed(relation), state(relations=[relation])) as manager:
        said = relations_tsa.read_webs(manager.charm.model)
    assert said.taken == ()
    units[1]["worker-keys-taken"] = f"- {one} nonsense"
    relation = dataclasses.replace(tsa(), remote_units_data=units)
    with context(context.on.relation_changed(relation), state(relations=[relation])) as manager:
        said = relations_tsa.read_webs(manager.charm.model)
    assert said.taken == (one,)
    assert said.silent == ()


def test_a_revision_of_the_secret_that_nobody_needs_is_removed(context, rooms):
    content = [{"admin-password": password} for password in "pqr"]
    secret = testing.Secret(content[1], owner="app", latest_content=content[2])
    for name, revision in (("_tracked_revision", 2), ("_latest_revision", 3)):
        object.__setattr__(secret, name, revision)
    before = dataclasses.replace(state("web"), secrets=[secret])
    context.run(context.on.secret_remove(secret, revision=1), before)
    assert context.removed_secret_revisions == [1]
