# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What can happen next in a lease_world, and what that changes; lease_model tells it in words."""

from tests.unit.lease_world import CREATE_RUNS, EXEC_RUNS, MINUTE


def steps(world):
    """All that can happen next: (kind, container's index or None, exec's number or None)."""
    left = world.budget
    says = ("looked", "withheld") if left.get("refusals") else ("looked",)
    yield from ((kind, index, number) for index, number, _ in world.looks for kind in says)
    for index, container in enumerate(world.containers):
        for kind in _container_steps(container, left):
            yield kind, index, None
        for number, execed in enumerate(container.execs):
            for kind in _exec_steps(container, number, execed, left):
                yield kind, index, number
    if left.get("minutes") and any(
        each.phase in ("made", "wait", "looks", "pending", *CREATE_RUNS)
        for each in world.containers
    ):
        yield "minute", None, None
    if left.get("switches"):
        yield "switch", None, None
    if left.get("quarantines"):
        yield "quarantine", None, None
    if left.get("restarts"):
        yield "restart", None, None
    if left.get("reuses"):
        yield from (("reuse", None, pid) for pid in _names_of_the_dead(world))


def _container_steps(container, left):
    phase = container.phase
    if container.asks:
        if left.get("kills"):
            yield "kill self-test"
        return
    if phase in ("wait", "looks", *CREATE_RUNS) and left.get("kills"):
        yield "kill"
    if container.held:
        yield "give back"
        if left.get("kills"):
            yield "kill self-test"
    own = container.kind != "container" or container.begun_own
    if container.has_init and own and not container.forked and left.get("forks"):
        yield "fork"
    if container.phase == "made" and not own:
        yield "begin"
    if container.forked:
        yield "forked dies"
    yield from {
        "idle": ("reserve",) if container.reserves else ("create",),
        "reserved": ("create",),
        "wait": ("look", "expire") if left.get("expiries") else ("look",),
        "call": ("start", "fail") if left.get("failures") else ("start",),
        "init": ("end",) if container.kind == "job" else ("tell",),
        "pending": ("start late", "fail"),
        "filed": ("end",),
        "made": ("end init",) if left.get("ends") else (),
        # systemd removes no group in which something lives.
        "dead": () if container.kind == "job" and container.uses else ("delete",),
        "orphan": ("delete",),
    }.get(phase, ())
    if phase in ("over", "gone") and container.tries > 1:
        yield "again"


def _exec_steps(container, number, execed, left):
    before = container.execs[number - 1].phase if number else ""
    own = container.kind != "container" or container.begun_own
    if execed.phase == "idle" and container.phase == "made" and own and before != "idle":
        yield "exec"
    if execed.phase in ("looks", *EXEC_RUNS) and left.get("kills"):
        yield "kill"
    if execed.phase == "call":
        yield from ("start", "fail") if container.phase == "made" else ("fail",)
    elif execed.phase == "born":
        yield "tell"
    elif execed.phase == "filed":
        yield "end"
    if execed.phase in ("runs", "lost"):
        yield "die"
        if left.get("children") and not execed.child:
            yield "child"
        if left.get("stales") and execed.phase == "runs":
            yield "die untold"
    if execed.child and container.immortal:
        yield "child dies"


def _names_of_the_dead(world):
    found = set()
    for container in world.containers:
        found.update(world.files(container).values())
    table = world.table or {}
    for holder in table.get("holders", {}).values():
        found.update(pid for pid, _ in holder["calls"])
    found.update(waiter["call"][0] for waiter in table.get("waiters", []))
    return sorted(found - world.processes().keys())


SPENDS = {
    "kill": "kills", "minute": "minutes", "switch": "switches", "restart": "restarts",
    "reuse": "reuses", "expire": "expiries", "fail": "failures", "end init": "ends",
    "child": "children", "die untold": "stales", "kill self-test": "kills",
    "quarantine": "quarantines", "fork": "forks", "withheld": "refusals",
}  # fmt: skip
DECISIONS = ("create", "look", "expire", "exec", "reserve", "give back", "looked", "withheld")


def happen(world, kind, index, number):
    """Let a step happen that is no decision."""
    if kind in SPENDS and world.budget.get(SPENDS[kind]):
        world.budget[SPENDS[kind]] -= 1
    if kind == "minute":
        world.clock += MINUTE
        for each in world.containers:
            each.phase = "over" if each.phase == "pending" else each.phase
    elif kind == "switch":
        world.exclusive = not world.exclusive
    elif kind == "quarantine":
        world.quarantined = [] if world.quarantined else world.devices[:1]
    elif kind == "reuse":
        world.reused[number] = (999, "/elsewhere")
    elif kind == "restart":
        _restart(world)
    elif number is None:
        _container_step(world, world.containers[index], kind)
    else:
        _exec_step(world, world.containers[index], kind, number)


def _restart(world):
    for container in world.containers:
        if container.phase in ("wait", "looks", *CREATE_RUNS):
            world.kill_call(container)
        for number, execed in enumerate(container.execs):
            if execed.phase in ("looks", *EXEC_RUNS):
                world.kill_call(container, number)


def _container_step(world, container, kind):
    if kind == "kill":
        world.kill_call(container)
    elif kind == "kill self-test":
        world.end_self_test(container)
    elif kind == "start":
        container.phase, container.born = "init", world.clock
    elif kind == "start late":
        container.phase, container.born = "made", world.clock
    elif kind in ("begin", "fork", "forked dies"):
        container.begun_own = True
        container.forked = kind == "fork"
    elif kind == "end init":
        container.end_init()
    elif kind == "delete":
        container.end_processes()
        container.phase = "gone"
        for each in container.execs:
            each.stale = False
    elif kind == "again":
        container.begin_anew()
    else:
        container.phase = {"tell": "filed", "end": "made", "fail": "over"}[kind]


def _exec_step(world, container, kind, number):
    execed = container.execs[number]
    if kind == "kill":
        world.kill_call(container, number)
    elif kind in ("child", "child dies"):
        execed.child = kind == "child"
    else:
        execed.stale = kind == "die untold"
        execed.phase = {
            "start": "born", "tell": "filed", "end": "runs",
            "die": "over", "die untold": "over", "fail": "over",
        }[kind]  # fmt: skip


def happen_all(world, run):
    for step in run:
        if step in steps(world):  # what is killed meanwhile does nothing more
            happen(world, *step)


def runs(world, deciding):
    """One step, or two of the same call, that can happen while another call decides."""
    for step in steps(world):
        if step[0] in (*DECISIONS, "switch", "quarantine", "minute") or step[1:] == deciding:
            continue
        yield [step]
        after = world.copy()
        happen(after, *step)
        for other in steps(after):
            if other[0] not in DECISIONS and other[1:] == step[1:]:
                yield [step, other]
