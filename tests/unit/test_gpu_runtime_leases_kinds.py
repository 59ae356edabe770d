# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease protocol with all kinds of holders, and with wishes for very devices, in every state.

What may happen is told in lease_model; the worlds of steps alone are in test_gpu_runtime_leases.
"""

import collections
import os

import pytest

from gpu_runtime import holder_usage as usage
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.lease_table import Waiter
from tests.unit.lease_model import explore
from tests.unit.lease_world import DEVICES, Broken, Container, World

ONE = {"devices": 1}

WORLDS = {
    "an engine's container": lambda: World(
        [Container("c1", kind="container"), Container("c2", execs=0)],
        **ONE,
        kills=1, minutes=1, children=1, ends=1, failures=1,
    ),
    "an engine's container that shares its PID namespace": lambda: World(
        [Container("c1", kind="container", bare=True, tries=2), Container("c2", execs=0)],
        **ONE,
        kills=1, forks=1, ends=2,
    ),
    "an engine's container that cannot be killed": lambda: World(
        [Container("c1", kind="container", bare=True, immortal=True), Container("c2", execs=0)],
        **ONE,
        forks=1, ends=1, kills=1,
    ),
    "a job": lambda: World(
        [Container("c1", execs=0, kind="job"), Container("c2", execs=0)],
        **ONE,
        kills=1, minutes=2, forks=2, ends=1, failures=1,
    ),
    "a job that cannot be killed": lambda: World(
        [Container("c1", execs=0, kind="job", immortal=True), Container("c2", execs=0)],
        **ONE,
        kills=1, forks=1, ends=1, minutes=2,
    ),
    "all kinds": lambda: World(
        [
            *(Container("c1", execs=0, kind="job"), Container("c2", execs=0, kind="container")),
            Container("c3"),
        ],
        **ONE,
        kills=1, ends=2,
    ),
    "all kinds, shared, then not": lambda: World(
        [
            *(Container("c1", execs=0, kind="job"), Container("c2", execs=0, kind="container")),
            Container("c3", execs=0),
        ],
        exclusive=False, **ONE, switches=2, ends=1,
    ),
    "names": lambda: World(
        [
            *(Container("c1", named=DEVICES[:1]), Container("c2", execs=0)),
            *(Container("c3", execs=0, named=DEVICES[:1]), Container("c4", 2, execs=0)),
        ],
        kills=1,
    ),
    "names and a large wish": lambda: World(
        [
            *(Container("c1"), Container("c2", execs=0, named=DEVICES[:2])),
            *(Container("c3", execs=0, named=DEVICES[2:]), Container("c4", 3, execs=0)),
        ],
        devices=3,
    ),
    "others beside one who names devices": lambda: World(
        [Container("c1"), Container("c2", execs=0, named=DEVICES[:2]), Container("c3", execs=0)],
        devices=3, minutes=1,
    ),
    "two who name each other's": lambda: World(
        [
            *(Container("c1"), Container("c2", execs=0, named=DEVICES[:2])),
            *(Container("c3", execs=0, named=DEVICES[1:]), Container("c4", execs=0)),
        ],
        devices=3, expiries=1,
    ),
    "names and sessions": lambda: World(
        [Container("c1", execs=2), Container("c2", named=DEVICES[:1], execs=0)], minutes=1
    ),
    "names, shared, then not": lambda: World(
        [
            *(Container("c1", named=DEVICES[:1]), Container("c2", execs=0, named=DEVICES[:2])),
            Container("c3", execs=0),
        ],
        exclusive=False, switches=2,
    ),
    "self-test, quarantine and names": lambda: World(
        [
            *(Container("c1", execs=0, reserves=DEVICES[:1]), Container("c2", execs=0)),
            Container("c3", execs=0, named=DEVICES[:1]),
            Container("c4", execs=0, named=DEVICES[1:2]),
        ],
        quarantines=2,
    ),
}  # fmt: skip
IN_THE_MIDDLE = {
    "other kinds in the middle": lambda: World(
        [Container("c1", execs=0, kind="job"), Container("c2", kind="container")],
        **ONE,
        kills=1,
        ends=1,
    ),
}  # fmt: skip
# A good part of all the time; `make soak` explores them, and here they show breaches.
LONG = {"names", "others beside one who names devices"}
SOAK = "GPUCI_SOAK" in os.environ
# What these found when they were written, less a third.
STATES, STEPS = (48_000, 130_000) if SOAK else (36_000, 88_000)
KINDS = {
    "create granted", "create waits", "create killed", "create refused", "look granted",
    "exec granted", "exec refused", "start", "fail", "tell", "end", "end init", "delete", "again",
    "begin", "fork", "forked dies", "start late", "child", "kill", "minute", "switch",
    "reserve granted", "reserve refused", "quarantine", "in the middle of a decision",
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


def put(owner, name, value):
    return lambda patch: patch.setattr(owner, name, value)


def forget_names(patch):
    def as_json(self, real=Waiter.as_json):
        return {**real(self), "named": []}

    patch.setattr(Waiter, "as_json", as_json)


# What is broken, the world in which that shows, and how.
BREACHES = {
    "a job ends with its first process": (
        put(usage.Host, "_lives", lambda *_: False), "a job", "grant|kill:",
    ),
    "a unit comes at once": (put(usage, "STARTING", 0), "a job", "grant|use:"),
    "a unit may come for ever": (put(usage, "STARTING", 10**6), "a job", "grant"),
    "a container lasts for ever": (
        put(usage.Host, "_lives", lambda *_: True), "an engine's container", "grant",
    ),
    "a container may wait for its start for ever": (
        put(usage.Host, "_is_begun", lambda *_: True), "an engine's container", "grant",
    ),
    "what a container leaves keeps its devices": (
        put(usage.Host, "_init", lambda *_: 0),
        "an engine's container that shares its PID namespace",
        "grant",
    ),
    "what a container leaves is left": (
        put(usage.Host, "_end", lambda *_: True),
        "an engine's container that shares its PID namespace",
        "use:",
    ),
    "a name is a number": (
        put(leases.Shares, "has_room", lambda self, count, _=(): (
            count <= len(self.left) - self.given
        )),
        "names",
        "table:|grant",
    ),
    "names are not noted": (forget_names, "names", "grant"),
    "names keep all there is": (
        put(leases.Shares, "has_room", lambda self, count, named=(), real=leases.Shares.has_room: (
            not self.kept and real(self, count, named)
        )),
        "others beside one who names devices",
        "grant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
def test_the_model_sees_each_breach(monkeypatch, name):
    breach, world, words = BREACHES[name]
    breach(monkeypatch)
    with pytest.raises(Broken, match=words):
        explored(world)
