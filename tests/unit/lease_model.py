# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lease protocol as a model, explored over all interleavings. What decides is the real code.

The parties are containers, each with one call `create` and some calls `exec`, the self-test, and
what is not ours: the kernel, runc, containerd, people who kill. There is no daemon: each call
decides for itself under one lock, and learns of all others by the table and by what /proc and
bundles show.

A container, by the step that leads on:

    idle --create--> call, or wait        the back end decided: it has its devices, or waits
    wait --look--> call                   it looks again, every half second
    wait --expire--> over                 gpu-wait-timeout is over: it looks once more, gives up
    call --start--> init --tell--> filed --end--> made    init lives, init.pid, runc is done
    call --fail--> over                   runc could not
    made --end init--> dead --delete--> gone    it is killed, and deleted; or never
    over, gone --again--> idle            containerd creates the same id anew

One of the self-test's, which has its devices from before its create, in whatever state it is,
until they are given back or the self-test is killed:

    idle --reserve--> reserved            the self-test has its devices, or it is over
    reserved --create--> call             it gets just those, whatever it asks for
    reserved --give back--> over

A process in it:

    idle --exec--> call --start--> born --tell--> filed --end--> runs    the same for an exec
    runs --child--> runs                  it leaves a child with a session of its own
    runs --die--> over                    its pid file goes with it, or stays (`die untold`)
    child --child dies--> no child        by itself; an `immortal` container's in no other way

A container of an engine goes the same way, and is held as long as its init lives, once that has
begun (made --begin--> made), or, where no init.pid tells which that is, as anything in it does. A
job has no bundle, and its first process is the init here: it is held as long as anything lives.
Killed at `call`, its call may have asked for the unit already, which then comes within a minute of
the grant, or not at all:

    call --kill--> pending --start late--> made    init --end--> made
    init --fork--> init with a child, which outlives it unless it has a PID namespace of its own

Where a device is watched, a decision that is to hand it on first looks who else has it open,
without the lock. It goes on once that is over (`looked`), or learns that it can't (`withheld`):

    create, look, exec, reserve, give back --> looks --looked, withheld--> as before

Meanwhile: `kill` (SIGKILL for a call, at any of these places; within a decision in front of each
of its side effects, which are files replaced and processes killed), `restart` (of the worker and
of containerd: all calls are killed at once, containers go on), `minute` (61 s pass), `reuse` (a
process elsewhere gets a number that a record or a pid file still names), `switch` (of
gpu-allocation), `quarantine` (of the first device, or the end of that).

What must be so in every state:

    use       No device is open to pipelines' processes of two containers, unless it is shared.
    table     No two holders have the same device, unless both share it.
    kill      Nothing is killed for others that is using its devices.
    session   Nobody waits for sessions for longer than those may keep devices after their step.
    waiters   Exactly those calls are waiters that live and wait, apart from dead ones. A create
              that looks is one, unless it had devices before.
    unseen    No watched device goes to another holder before that one has looked.

and of each decision, by the rules of leases alone, whatever the table says:

    create    It is granted if and only if the devices that nobody uses, less those that are due
              to living calls which waited longer, are enough. Due is what fits, oldest first,
              and to the first that does not fit and was overtaken, or waits for 30 s, the rest.
    exec      It is granted if the container is using its devices, or if nobody else uses them,
              they are in no quarantine, and as many are left as are due to those who wait. An
              engine's container that is over gets no more.
    reserve   It is granted if nobody uses the devices at all, and as many that are in no
              quarantine are left as are due to those who wait.
    give back Nobody has the devices any more, unless something runs with them still.

The first is why nobody is overtaken, why the dead block nobody and why no lease is lost for
longer than until the next look.
"""

import collections

from tests.unit.lease_environment import MOST_OVERTAKINGS, Environment, decide, installed
from tests.unit.lease_steps import DECISIONS, happen, happen_all, runs, steps
from tests.unit.lease_world import EXEC_RUNS, SESSION_LIMIT, Broken


def left_by_queue(world, free, before=""):
    """What of `free` devices is not due to those who wait, or waited before that container.

    Returns:
        The devices that nobody has a claim to by name, and how many of them are due all the same.
    """
    left, promised = {*free}, 0
    for name in world.queue:
        if name == before:
            break
        waits = world.named(name)
        count = count_of(world, waits)
        fits = count <= len(left) - promised and {*waits.named} <= left
        owed = waits.overtaken >= MOST_OVERTAKINGS or world.clock - waits.begun >= 30
        if waits.named and (fits or owed):
            left -= {*waits.named}
        elif fits and not waits.named:
            promised += count
        elif owed:
            promised = max(promised, len(left))
            break
    return left, promised


def has_room(world, free, wanted, count, before=""):
    """Whether so many of `free` devices, and those `wanted` by name, are due to nobody else."""
    left, promised = left_by_queue(world, free, before)
    return {*wanted} <= left and count <= len(left) - promised


def count_of(world, container):
    """How many devices a container asks for; None is all."""
    return len(world.usable) if container.count is None else container.count


def expected(world, container, number, kind):
    """Whether the rules of leases grant what is asked now."""
    if container.count == 0 or kind == "give back":
        return True
    own = world.holders.get(container.name, {})
    if world.is_handed_over(own, caller(world, container, number, kind)):
        return False
    if container.name in world.holders and uses(world, container.name):
        return True
    if number is not None and container.kind == "container":
        return False
    free = free_for(world, container)
    if kind == "reserve":
        wanted = [device for device in free if device in container.reserves]
        return reservable(world, container) and (
            not wanted or has_room(world, free, wanted, len(wanted))
        )
    if number is None:
        count = count_of(world, container)
        if world.exclusive:
            return has_room(world, free, container.named, count, container.name)
        return {*container.named} <= {*free} and count <= len(free)
    if not {*container.ids} <= {*free}:
        return False
    return not world.exclusive or has_room(world, free, container.ids, len(container.ids))


def caller(world, container, number, kind):
    """The process that decides."""
    if kind in ("reserve", "give back"):
        return world.pid(container, "self-test")
    return world.pid(container, "create" if number is None else "exec", number or 0)


def users(world, container):
    """The holders but `container` that use their devices, can't be ended, or are handed over."""
    own = {
        world.pid(container, what, number)
        for what, number in (("create", 0), ("self-test", 0), *(("exec", n) for n in range(3)))
    }
    return [
        holder
        for name, holder in world.holders.items()
        if name != container.name
        and (
            uses(world, name)
            or world.named(name).is_stuck
            or name in world.withheld
            or (world.is_handed_over(holder) and holder["handing"][0][0] not in own)
        )
    ]


def free_for(world, container):
    """The devices that tasks may have and that no other one than `container` uses."""
    used = {
        gpu
        for holder in users(world, container)
        if world.exclusive or holder["exclusive"]
        for gpu in holder["gpus"]
    }
    return [device for device in world.usable if device not in used]


def reservable(world, container):
    """Whether nobody uses what a container of the self-test is to have."""
    return not any({*holder["gpus"]} & {*container.reserves} for holder in users(world, container))


def uses(world, name):
    """Whether the lease of a container goes on."""
    return world.in_use(world.named(name))


def settle(world, container, number, kind, outcome, ids, *, had, look=None):
    """What a decision means for the world: what the call is at from now on.

    Args:
        world, container, number, kind: as for `decide`.
        outcome, ids: what came of it.
        had: the names of the containers that used their devices before: who has a lease already,
            such as one that the self-test reserved, overtakes nobody.
        look: the mark of the look that it began, and the holders' names.
    """
    if outcome == "looks":
        keep_looking(world, container, number, kind, look)
        return
    container.asks = ""
    if kind == "reserve":
        container.held = outcome == "granted"
        container.phase = "reserved" if container.held else "over"
        return
    if kind == "give back":
        world.end_self_test(container)
        return
    if outcome == "granted":
        container.ids = ids
        if ids:
            if container.name not in had:
                container.denied = 0
            container.alone = world.table["holders"][container.name]["exclusive"]
            container.granted = int(world.table["holders"][container.name]["since"])
    if number is None:
        settle_create(world, container, outcome, overtakes=ids and container.name not in had)
    else:
        container.come |= outcome == "granted"
        ends = {"granted": "call", "refused": "refused", "killed": "over"}
        container.execs[number].phase = ends[outcome]


def settle_create(world, container, outcome, *, overtakes):
    if outcome == "granted" and overtakes:
        overtake(world, container)
    if outcome == "waits":
        check_sessions(world, container)
    else:
        container.overtaken = 0
    ends = {"granted": "call", "waits": "wait", "refused": "over", "killed": "over"}
    if outcome == "waits" and container.name not in world.queue:
        world.queue += (container.name,)
    container.phase = ends[outcome]


def keep_looking(world, container, number, kind, look):
    """A decision goes on when its look is over."""
    world.looks[world.containers.index(container), number, kind] = look
    if kind in ("reserve", "give back"):
        container.asks = kind
    elif number is not None:
        container.execs[number].phase = "looks"
    else:
        if container.name not in world.queue:
            calls = [waiter["call"][0] for waiter in world.table["waiters"]]
            waits = world.pid(container, "create") in calls
            world.queue += (container.name,) if waits else ()
        container.phase = "looks"


def overtake(world, container):
    """Who was granted devices alone overtakes those who waited for longer."""
    for name in world.queue[: (*world.queue, container.name).index(container.name)]:
        waits = world.named(name)
        took = not waits.named or {*waits.named} & {*container.ids}
        waits.overtaken += bool(container.alone and took)


def check_sessions(world, waiting):
    """Nobody waits because of sessions for longer than those may keep devices."""
    for other in world.containers:
        starting = any(each.phase in EXEC_RUNS for each in other.execs)
        if other is waiting or starting or not other.has_sessions_alone:
            continue
        other.denied = other.denied or world.clock
        if uses(world, other.name) and world.clock - other.denied >= SESSION_LIMIT:
            raise Broken(f"session: {waiting.name} waits for those in {other.name}")


def go_on(world, kind, index, number):
    """What a decision goes on with: its kind, how that is called here, and what a look said."""
    if kind not in ("looked", "withheld"):
        return kind, kind, None
    (key,) = [key for key in world.looks if key[:2] == (index, number)]
    mark, names = world.looks.pop(key)
    world.withheld = tuple(names) if kind == "withheld" else ()
    return key[2], kind, (mark, dict.fromkeys(names, "" if kind == "looked" else "why"))


def check_seen(world, container, held, look):
    """Nobody gets a watched device of another holder without a look of his own."""
    seen = look[1] if look else {}
    mine = (world.table or {}).get("holders", {}).get(container.name, {}).get("gpus", [])
    for name, holder in held.items():
        gone = name not in world.table["holders"]
        taken = gone and holder["nodes"] and {*holder["gpus"]} & {*mine}
        if taken and name not in (container.name, *seen):
            raise Broken(f"unseen: {container.name} has {mine} of {name}")


def check_given_back(world, container):
    """What was reserved is nobody's any more, unless something runs with it still."""
    used = uses(world, container.name) or container.is_stuck
    used |= container.name in world.withheld
    used |= world.is_handed_over(world.table["holders"].get(container.name, {}))
    if container.name in world.table["holders"] and not used:
        raise Broken(f"give back: {container.name} holds, and nothing of it runs: {world.table}")


def check(world, label):
    """The invariants of the state that the step `label` led to."""
    for text in broken(world):
        raise Broken(f"{text}; {label}")


def broken(world):
    """What is broken."""
    alive = world.processes()
    users = [each for each in world.containers if each.uses]
    for place, one in enumerate(users):
        for other in users[place + 1 :]:
            if set(one.ids) & set(other.ids) and (one.alone or other.alone):
                yield f"use: {one.name} and {other.name} have {one.ids}, {other.ids}"
    table = world.table or {}
    holders = [*table.get("holders", {}).values()]
    for place, one in enumerate(holders):
        for other in holders[place + 1 :]:
            alone = one["exclusive"] or other["exclusive"]
            if set(one["gpus"]) & set(other["gpus"]) and alone:
                yield f"table: {one} and {other}"
    calls = [tuple(waiter["call"]) for waiter in table.get("waiters", [])]
    living = sorted(pid for pid, start in calls if alive.get(pid, (None,))[0] == start)
    waiting = sorted(
        world.pid(each, "create") for each in world.containers if each.phase == "wait"
    )
    looking = {
        world.pid(each, "create")
        for each in world.containers
        if each.phase == "looks" and each.name not in world.queue
    }
    waiting += [
        world.pid(each, "create")
        for each in world.containers
        if each.phase == "looks" and each.name in world.queue
    ]
    if {*living} - looking != {*waiting}:
        yield f"waiters: {living} are written down, {waiting} wait"


class Explorer:
    """Goes through all states that a world can come to.

    Attributes:
        states: how many there were.
        kinds: how often each kind of step was seen; of decisions, each outcome.
    """

    def __init__(self, world, limit=0, meanwhile=False):
        self.environment = Environment(world)
        self.first, self.limit, self.meanwhile = world, limit, meanwhile
        self.states, self.kinds = 0, collections.Counter()

    def run(self):
        """Explore, by depth first.

        Raises:
            Broken: an invariant; the text tells the steps that lead there.
        """
        seen = {self.first.key}
        trail, stack = [], [self.successors(self.first)]
        while stack:
            try:
                following = next(stack[-1], None)
            except Broken as fault:
                lines = "\n".join(map(str, trail))
                raise Broken(f"{fault}\nafter\n{lines}") from None
            if following is None:
                stack.pop()
                del trail[len(stack) - 1 :]
                continue
            label, world = following
            if world.key in seen or (self.limit and len(seen) >= self.limit):
                continue
            seen.add(world.key)
            trail.append(label)
            stack.append(self.successors(world))
        self.states = len(seen)

    def successors(self, world):
        """Each step with the world after it."""
        for kind, index, number in steps(world):
            label = (kind, index, number)
            if kind not in DECISIONS:
                other = world.copy()
                happen(other, *label)
                self.kinds[kind] += 1
                check(other, label)
                yield label, other
                continue
            yield from self.decisions(world, *label)

    def decisions(self, world, kind, index, number):
        """The worlds after a decision: carried through, and killed in front of each effect."""
        other, outcome = self.decided(world, kind, index, number)
        yield (kind, index, number, outcome), other
        effects = self.environment.effects
        if world.budget.get("kills"):
            for place in range(effects + 1):
                other, outcome = self.decided(world, kind, index, number, die_at=place)
                other.budget["kills"] -= 1
                yield (kind, index, number, f"killed at effect {place}"), other
        if self.meanwhile:
            yield from self.interrupted(world, kind, index, number)

    def decided(self, world, kind, index, number, die_at=None):
        other = world.copy()
        container = other.containers[index]
        if kind == "withheld" and die_at is None:
            other.budget["refusals"] -= 1
        kind, said, look = go_on(other, kind, index, number)
        wanted = expected(other, container, number, kind)
        patience = 0 if kind == "expire" else 240
        self.environment.world, self.environment.die_at = other, die_at
        held = dict(other.holders)
        outcome, ids = decide(
            self.environment, container, number, kind=kind, patience=patience, look=look
        )
        if die_at is None and outcome == "looks":
            # What it had itself before may have to be seen first, and then it waits all the same.
            wanted = wanted or container.name in self.environment.look[1]
        if die_at is None and (outcome in ("granted", "looks")) != wanted:
            raise Broken(
                f"{kind} of {container.name} is {outcome}, and should {'' if wanted else 'not '}"
                f"be granted: {kind, index, number}, {other.table}"
            )
        if outcome == "granted":
            check_seen(other, container, held, look)
        if kind == "expire" and other.budget.get("expiries"):
            other.budget["expiries"] -= 1
        settle(
            *(other, container, number, kind, outcome, ids),
            had=self.environment.used,
            look=self.environment.look,
        )
        if die_at is not None and outcome not in ("killed", "refused"):
            # After the last effect what was decided stands, and nobody goes on with it.
            if kind in ("reserve", "give back"):
                other.end_self_test(container)
            else:
                other.kill_call(container, number)
            outcome = "killed"
        elif kind == "give back" and outcome == "granted":
            check_given_back(other, container)
        other.withheld = ()
        self.kinds[f"{said} {outcome}"] += 1
        check(other, (kind, index, number, outcome, die_at))
        return other, outcome

    def interrupted(self, world, kind, index, number):
        """The same with other steps in the middle, in front of each of the files that it reads."""
        reads = self.environment.reads
        for between in runs(world, (index, number)):
            for place in range(1, reads + 1):
                other = world.copy()
                self.environment.meanwhile = place, lambda into, run=between: happen_all(into, run)
                self.environment.world, self.environment.die_at = other, None
                patience = 0 if kind == "expire" else 240
                outcome, ids = decide(
                    self.environment,
                    other.containers[index],
                    number,
                    kind=kind,
                    patience=patience,
                )
                self.environment.meanwhile = None
                if self.environment.reads < place:
                    break
                container, had = other.containers[index], self.environment.used
                settle(other, container, number, kind, outcome, ids, had=had)
                self.kinds["in the middle of a decision"] += 1
                label = (kind, index, number, outcome, f"read {place}", between)
                check(other, label)
                yield label, other


def explore(world, *, meanwhile=False):
    """Go through all states of a world; an invariant that is broken is raised as Broken."""
    explorer = Explorer(world, meanwhile=meanwhile)
    with installed(explorer.environment):
        explorer.run()
    return explorer
