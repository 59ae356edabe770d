# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease protocol keeps its promises in every state (lease_model), and breaches are seen."""

import collections
import os

import pytest

from gpu_runtime import holder_usage as usage
from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.lease_table import Holder, Table, Waiter
from gpu_runtime.policy import Policy
from gpu_selftest import gpu_reservation as reserve
from tests.unit import lease_model
from tests.unit.lease_model import explore
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
    "a session stays": lambda: World(
        [Container("c1", execs=2, sessions=1), Container("c2", execs=0)],
        **ONE,
        minutes=2, children=1,
    ),
    "a start hangs": lambda: World(
        [Container("c1"), Container("c2", execs=0)], **ONE, minutes=2, kills=1
    ),
    "a large wish": lambda: World(
        [
            *(Container("c1"), Container("c2", execs=0), Container("c3", 2, execs=0)),
            *(Container("c4", execs=0), Container("c5", execs=0)),
        ]
    ),
    "two large wishes": lambda: World(
        [
            *(Container("c1", execs=0), Container("c2", 2, execs=0)),
            *(Container("c3", 2, execs=0), Container("c4", execs=0)),
        ],
        minutes=1,
    ),
    "a large wish and a session": lambda: World(
        [Container("c1", execs=2), Container("c2", 2, execs=0)], minutes=1
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
        [
            *(Container("c1", execs=0, reserves=DEVICES[:2]), Container("c2")),
            Container("c3", 2, execs=0),
        ],
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
    "a look at who has it open": lambda: World(
        [Container("c1"), Container("c2"), Container("c3", execs=0)],
        **ONE,
        watched=True, kills=1, children=1, refusals=1,
    ),
    "a look that lasts": lambda: World(
        [Container("c1", execs=0), Container("c2", execs=0), Container("c3", execs=0)],
        **ONE,
        watched=True, minutes=1, kills=1,
    ),
    "a look, and the id used again": lambda: World(
        [Container("c1", tries=2), Container("c2", execs=0)],
        **ONE,
        watched=True, kills=1, ends=1,
    ),
    "a look at two": lambda: World(
        [Container("c1"), Container("c2", execs=0), Container("c3", 2, execs=0)],
        watched=True, kills=1,
    ),
    "a look of the self-test": lambda: World(
        [Container("c1", reserves=DEVICES[:1]), Container("c2", execs=0)],
        **ONE,
        watched=True, kills=1, refusals=1, minutes=1,
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
# Half of all the time; `make soak` explores them, and here they show breaches.
LONG = {"a large wish", "a session stays", "two large wishes"}
SOAK = "GPUCI_SOAK" in os.environ
# What these found when they were written, less a third.
STATES, STEPS = (76_000, 200_000) if SOAK else (47_000, 108_000)
KINDS = {
    "create granted", "create waits", "create killed", "create refused",
    "look granted", "look waits", "look killed", "expire granted", "expire refused",
    "expire killed", "exec granted", "exec refused", "exec killed",
    "start", "fail", "tell", "end", "end init", "delete", "again", "die", "die untold",
    "child", "child dies", "kill", "restart", "minute", "reuse", "switch",
    "reserve granted", "reserve refused", "reserve killed", "give back granted",
    "give back killed", "kill self-test", "quarantine", "in the middle of a decision",
}  # fmt: skip


def explored(name):
    return explore({**WORLDS, **IN_THE_MIDDLE}[name](), meanwhile=name in IN_THE_MIDDLE)


def test_every_state_keeps_the_promises():
    states, kinds = 0, collections.Counter()
    for name in (*WORLDS, *IN_THE_MIDDLE):
        if name in LONG and not SOAK:
            continue
        explorer = explored(name)
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
    real = Table.as_json
    patch.setattr(
        Table,
        "as_json",
        lambda self: {**real(self), "waiters": real(self)["waiters"][::-1]},
    )


def share_alone(patch):
    """Count only what nobody has at all as free for those who share."""
    real = leases.are_due
    patch.setattr(leases, "are_due", lambda *told, **_: real(*told, exclusive=True))


def put(owner, name, value):
    return lambda patch: patch.setattr(owner, name, value)


def put_both(owner, names, value):
    return lambda patch: [patch.setattr(owner, name, value) for name in names]


def spare_init(patch):
    """As it was before: init can be the pipeline's own."""

    def clear(self, container, holder, real=usage.Host.clear):
        init = self._pid(f"{holder.bundle}/init.pid")
        living = self._living
        patch.setattr(self, "_living", lambda folder: living(folder) - {init}, raising=False)
        patch.setattr(
            self, "_kill", lambda pid, _: pid != init and self.take_hold(pid).kill(), raising=False
        )
        return real(self, container, holder)

    patch.setattr(usage.Host, "clear", clear)


def forget_overtakings(patch):
    def as_json(self, real=Waiter.as_json):
        return {**real(self), "overtaken": 0}

    patch.setattr(Waiter, "as_json", as_json)


def forget_that_the_step_ended(patch):
    def as_json(self, real=Holder.as_json):
        return {**real(self), "step_ended": 0.0}

    patch.setattr(Holder, "as_json", as_json)


# What is broken, and the world in which that shows.
BREACHES = {
    "never in use": (put(usage.Host, "in_use", lambda *_: False), "two for one", "grant"),
    "always in use": (put(usage.Host, "in_use", lambda *_: True), "two for one", "grant"),
    "no minute of grace": (put(usage, "STARTING", 0), "two for one", "grant"),
    "grace without end": (put(usage, "STARTING", 10**6), "two for one", "grant"),
    "a start may hang for ever": (put(usage, "STARTING", 10**6), "a start hangs", "grant"),
    "init is spared": (spare_init, "two for one", "use:"),
    "a group is known by its init alone": (
        put(usage.Host, "planned_cgroup", lambda *_: ""), "two for one", "use:",
    ),
    "a hanging start is left alone": (
        put(usage.Host, "_end_calls", lambda *_: None), "a start hangs", "use:",
    ),
    "a session may stay for ever": (
        forget_that_the_step_ended, "a session stays", "session:",
    ),
    "small wishes come first for ever": (
        put(leases, "is_owed", lambda *_: False), "a large wish", "grant",
    ),
    "overtaking is not counted": (forget_overtakings, "a large wish", "grant"),
    "time is not counted": (
        put(leases, "LONGEST_PASSED_OVER", 10**6), "two large wishes", "grant",
    ),
    "nothing is killed": (put(usage.Host, "clear", lambda *_: True), "two for one", "use:"),
    "what can't be killed is over": (
        put(leases, "release", lambda table, name, host: (
            not host.in_use(name, table.holders[name])
            and (host.clear(name, table.holders[name]), bool(table.holders.pop(name)))[1]
        )),
        "cannot be killed",
        "grant",
    ),
    "nobody looks who has it open": (
        put(leases, "release", lambda table, name, host: (
            not host.in_use(name, table.holders[name])
            and host.clear(name, table.holders[name])
            and bool(table.holders.pop(name))
        )),
        "a look at who has it open",
        "unseen:",
    ),
    "two look at once": (
        put(leases, "is_handed_over", lambda *_: False), "a look of the self-test", "grant",
    ),
    "who looks keeps it for ever": (
        put(leases, "LONGEST_LOOK", 10**6), "a look of the self-test", "grant",
    ),
    "the dead look on": (
        put(leases, "is_handed_over", lambda holder, _: bool(holder.handing)),
        "a look at who has it open",
        "grant",
    ),
    "calls are not noted": (forget_calls, "two for one", "grant"),
    "nobody is due": (
        put(leases, "divide", lambda _, free, __: leases.Shares(free)),
        "one waits for two",
        "grant",
    ),
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
        put(Table, "free", lambda self, devices, **_: devices),
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
        put_both(leases, ("blocker", "evict"), lambda *_, **__: ""),
        "self-test",
        "table:|grant",
    ),
    "what is reserved is for anybody": (
        put(broker, "_keep", lambda *_: None), "self-test", "grant",
    ),
    "quarantine is for reserved devices too": (
        put(broker, "_keep", lambda *_: None), "self-test in quarantine", "grant",
    ),
    "quarantine is for nobody": (
        put(Policy, "unavailable", lambda *_: {}), "self-test in quarantine", "grant",
    ),
    "what was reserved is kept": (
        put(reserve, "give_back", lambda *_: None), "self-test", "give back:",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_the_model_sees_each_breach(monkeypatch, name):
    breach, world, words = BREACHES[name]
    breach(monkeypatch)
    with pytest.raises(Broken, match=words):
        explored(world)


def test_the_model_and_the_code_share_no_rule():
    """Else a mistake in one would be in both."""
    assert not {"usage", "leases"} & set(vars(lease_model))
