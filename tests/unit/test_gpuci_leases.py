# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease protocol keeps its promises in every state (lease_model), and breaches are seen."""

import collections

import pytest

from gpuci import broker, leases, usage
from gpuci.leases import Table
from gpuci.policy import Policy
from selftest import reserve
from tests.unit import lease_model
from tests.unit.lease_environment import installed
from tests.unit.lease_model import Explorer
from tests.unit.lease_world import DEVICES, Broken, Container, World

ONE = {"devices": 1}

# Small worlds, each with what one promise is about; each is explored to its end.
WORLDS = {
    "two for one": lambda: World(
        [Container("c1"), Container("c2")],
        **ONE,
        kills=1, minutes=1, children=1, failures=1,
    ),
    "hijack": lambda: World(
        [Container("c1", execs=2), Container("c2", execs=1)], **ONE, kills=1, children=1
    ),
    "one waits for two": lambda: World(
        [Container("c1"), Container("c2", 2, execs=0), Container("c3")], kills=1
    ),
    "four wait": lambda: World(
        [
            *(Container("c1"), Container("c2", 2, execs=0)),
            *(Container("c3", execs=0), Container("c4", None, execs=0)),
            Container("c5", 3, execs=0),
        ]
    ),
    "giving up": lambda: World(
        [Container("c1"), Container("c2", 2, execs=0), Container("c3", execs=0)],
        kills=1, expiries=2,
    ),
    "numbers used again": lambda: World(
        [Container("c1"), Container("c2", execs=0)],
        **ONE,
        kills=1, reuses=1, stales=1, minutes=1, restarts=1,
    ),
    "ids used again": lambda: World(
        [Container("c1", tries=2), Container("c2", execs=0)], **ONE, kills=1, ends=2, failures=1
    ),
    "ids used again without a GPU": lambda: World(
        [Container("c1", tries=2, later=0), Container("c2", execs=0)], **ONE, kills=1, ends=2
    ),
    "shared, then not": lambda: World(
        [Container("c1"), Container("c2")], exclusive=False, **ONE, switches=2, kills=1
    ),
    "cannot be killed": lambda: World(
        [Container("c1", immortal=True), Container("c2", execs=0)],
        **ONE,
        children=1, kills=1, ends=1,
    ),
    "self-test": lambda: World(
        [Container("c1", reserves=DEVICES[:1]), Container("c2", execs=0)],
        **ONE,
        kills=1, children=1, minutes=1, reuses=1,
    ),
    "self-test of two": lambda: World(
        [Container("c1", execs=0, reserves=DEVICES), Container("c2"), Container("c3", 2, execs=0)],
        kills=1,
    ),
    "self-test of one that is shared": lambda: World(
        [
            *(Container("c1", 2, execs=0, reserves=DEVICES[:1]), Container("c2", execs=0)),
            Container("c3", 2, execs=0),
            Container("c4", execs=0, reserves=DEVICES[:1]),
        ],
        exclusive=False,
    ),
    "self-test, shared, then not": lambda: World(
        [Container("c1", reserves=DEVICES[:1]), Container("c2", execs=0)],
        **ONE,
        exclusive=False, switches=2, kills=1,
    ),
    "self-test in quarantine": lambda: World(
        [
            *(Container("c1", 3, execs=0, reserves=DEVICES[:1]), Container("c2")),
            Container("c3", execs=0),
        ],
        quarantines=2,
    ),
}  # fmt: skip
# And with other steps in the middle of each decision.
IN_THE_MIDDLE = {
    "in the middle": lambda: World(
        [Container("c1"), Container("c2")], **ONE, kills=1, minutes=1, children=1
    ),
    "self-test in the middle": lambda: World(
        [Container("c1", execs=0, reserves=DEVICES[:1]), Container("c2")], **ONE, kills=1
    ),
}
# What these found when they were written, less a third.
STATES, STEPS = 23_000, 59_000
KINDS = {
    "create granted", "create waits", "create killed", "create refused",
    "look granted", "look waits", "look killed", "expire granted", "expire refused",
    "expire killed", "exec granted", "exec refused", "exec killed",
    "start", "fail", "tell", "end", "end init", "delete", "again", "die", "die untold",
    "child", "child dies", "kill", "restart", "minute", "reuse", "switch",
    "reserve granted", "reserve refused", "reserve killed", "give back granted",
    "give back killed", "kill self-test", "quarantine", "in the middle of a decision",
}  # fmt: skip


def explore(name):
    world, meanwhile = {**WORLDS, **IN_THE_MIDDLE}[name](), name in IN_THE_MIDDLE
    explorer = Explorer(world, meanwhile=meanwhile)
    with installed(explorer.environment):
        explorer.run()
    return explorer


def test_every_state_keeps_the_promises():
    states, kinds = 0, collections.Counter()
    for name in (*WORLDS, *IN_THE_MIDDLE):
        explorer = explore(name)
        print(f"{name}: {explorer.states} states")
        states += explorer.states
        kinds += explorer.kinds
    print(f"{states} states, {sum(kinds.values())} steps: {dict(sorted(kinds.items()))}")
    assert states > STATES
    assert kinds.total() > STEPS
    assert not KINDS - set(kinds)


def forget_calls(patch):
    def resume(shelf, host, policy, decision, real=broker.resume):
        record = real(shelf, host, policy, decision)
        with shelf as table:
            for holder in table.holders.values():
                holder.calls = []
        return record

    patch.setattr(broker, "resume", resume)


def newest_first(patch):
    real = Table.plain
    patch.setattr(
        Table,
        "plain",
        lambda self: {**real(self), "waiters": real(self)["waiters"][::-1]},
    )


def look_at_calls_last(patch):
    def in_use(self, container, holder, real=usage.Host.in_use):
        calls, holder.calls = holder.calls, []
        used = real(self, container, holder)
        holder.calls = calls
        return used or any(map(self.alive, calls))

    patch.setattr(usage.Host, "in_use", in_use)


def shut_an_eye(patch):
    """Drop those that died since the list was read, as a process does that left a child."""
    real = usage.Host._living
    patch.setattr(
        usage.Host,
        "_living",
        lambda self, folder: {pid for pid in real(self, folder) if self._started(pid) is not None},
    )


def share_alone(patch):
    """Count only what nobody has at all as free for those who share."""
    real = leases.are_due
    patch.setattr(leases, "are_due", lambda *told, **_: real(*told, alone=True))


def put(owner, name, value):
    return lambda patch: patch.setattr(owner, name, value)


def only_those_that_fit(patch):
    real = leases._due_before
    patch.setattr(leases, "_due_before", lambda *told: (real(*told)[0], False))


# What is broken, and the world in which that shows.
BREACHES = {
    "never in use": (put(usage.Host, "in_use", lambda *_: False), "two for one", "grant"),
    "always in use": (put(usage.Host, "in_use", lambda *_: True), "two for one", "grant"),
    "no minute of grace": (put(usage, "FIRST_EXEC", 0), "two for one", "grant"),
    "grace without end": (put(usage, "FIRST_EXEC", 10**6), "two for one", "grant"),
    "nothing is killed": (put(usage.Host, "clear", lambda *_: True), "two for one", "use:"),
    "what can't be killed is over": (
        put(leases, "release_unused", lambda table, name, host: (
            not host.in_use(name, table.holders[name])
            and (host.clear(name, table.holders[name]), bool(table.holders.pop(name)))[1]
        )),
        "cannot be killed",
        "grant",
    ),
    "calls are not noted": (forget_calls, "two for one", "grant"),
    "nobody is due": (
        put(leases, "_due_before", lambda *_: (0, False)), "one waits for two", "grant",
    ),
    "only those that fit are due": (only_those_that_fit, "one waits for two", "grant"),
    "the newest first": (newest_first, "four wait", "grant"),
    "a hijack comes first": (put(leases, "are_due", lambda *_, **__: False), "hijack", "grant"),
    "a number is a process": (
        put(usage.Host, "alive", lambda self, call: self._started(call[0]) is not None),
        "numbers used again",
        "grant",
    ),
    "a pid file is a process": (
        put(usage.Host, "_inside", lambda self, pid, _: self._started(pid) is not None),
        "numbers used again",
        "grant",
    ),
    "shared is all there is": (
        put(Table, "free", lambda self, devices, *, alone: devices),
        "shared, then not",
        "table:|grant",
    ),
    "an id is for ever": (
        put(broker, "do_without", lambda shelf, _, name, bundle, grant: (
            shelf.put(name, bundle, grant)
        )),
        "ids used again without a GPU",
        "grant",
    ),
    "the self-test comes first": (
        put(leases, "are_due", lambda *_, **__: False), "self-test of two", "grant",
    ),
    "the self-test comes before those who share": (
        share_alone, "self-test of one that is shared", "grant",
    ),
    "the self-test takes what others have": (
        put(leases, "take_these", lambda *_, **__: ""), "self-test", "table:|grant",
    ),
    "what is reserved is for anybody": (
        put(broker, "_keep", lambda *_: None), "self-test", "grant",
    ),
    "quarantine is for reserved devices too": (
        put(broker, "_keep", lambda *_: None), "self-test in quarantine", "grant",
    ),
    "quarantine is for nobody": (
        put(Policy, "cordoned", lambda *_: {}), "self-test in quarantine", "grant",
    ),
    "what was reserved is kept": (
        put(reserve, "give_back", lambda *_: None), "self-test", "give back:",
    ),
    "calls are looked at last": (look_at_calls_last, "in the middle", "kill:"),
    "a list that has aged": (shut_an_eye, "in the middle", "use:"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_the_model_sees_each_breach(monkeypatch, name):
    breach, world, words = BREACHES[name]
    breach(monkeypatch)
    with pytest.raises(Broken, match=words):
        explore(world)


def test_the_model_and_the_code_share_no_rule():
    """Else a mistake in one would be in both."""
    assert not {"usage", "leases"} & set(vars(lease_model))
