# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Holders that are no steps, on recorded trees: an engine's containers, and systemd's jobs."""

import json
import os
import shutil

import pytest

from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_scheduler as leases
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import (
    CONTAINER,
    JOB,
    NOUNS,
    RUNNER,
    Holder,
    Table,
    names_container,
    readable,
)
from gpu_runtime.policy import Policy
from gpu_runtime.queue_messages import Place
from tests.unit.grants import NVIDIA, content
from tests.unit.recorded_trees import SHELL
from tests.unit.refusals import refuses
from tests.unit.wrapper_rig import GPUS

IDS = [device.id for device in NVIDIA.devices]
HEX = "4f0c" * 16


def of_kind(tree, name, kind):
    """A recorded container as if an engine had made it, or its control group were a unit's."""
    holder = tree.holder(name, execs=False)
    holder.kind = kind
    if name in ("nobody", "gone"):
        holder.cgroup = f"/garden/{name}"
    else:
        holder.cgroup = tree.cgroup(name)
    if kind == JOB:
        holder.bundle = ""
    return holder


def test_a_container_is_in_use_while_its_first_process_lives(tree):
    """`docker exec` and its like come and go; nothing of theirs is noted for us to read."""
    holder = of_kind(tree, "finished", CONTAINER)
    assert tree.host.in_use("finished", holder)
    assert tree.host.processes("finished", holder) == []
    tree.die(tree.pid("finished"))
    assert not tree.host.in_use("finished", holder)


def test_what_a_container_leaves_behind_is_no_use_and_goes_with_it(tree):
    holder, init = of_kind(tree, "left-behind", CONTAINER), tree.pid("left-behind")
    left = tree.its("left-behind") - {init}
    assert left
    tree.die(init)
    assert not tree.host.in_use("left-behind", holder)
    assert tree.host.has_leftovers("left-behind", holder)
    assert tree.host.clear("left-behind", holder)
    assert {*tree.killed} == left


def test_a_container_that_is_never_started_has_a_minute(tree):
    """As where podman is killed between create and start: runc's own process stays."""
    holder = of_kind(tree, "finished", CONTAINER)
    holder.since = tree.host.now()
    tree.write(f"/proc/{tree.pid('finished')}/comm", "runc:[2:INIT]\n")
    assert tree.host.in_use("finished", holder)
    tree.patience = 61
    assert not tree.host.in_use("finished", holder)
    init = tree.pid("finished")
    tree.path(f"{holder.bundle}/init.pid").unlink()
    assert not tree.host.in_use("finished", holder), "nor where nobody tells which it is"
    tree.write(f"/proc/{init}/comm", "sh\n")
    assert tree.host.in_use("finished", holder)


def test_where_nobody_tells_which_is_the_first_any_process_of_a_container_is_use(tree):
    holder = of_kind(tree, "finished", CONTAINER)
    (init,) = tree.its("finished")
    tree.path(f"{holder.bundle}/init.pid").unlink()
    assert tree.host.in_use("finished", holder)
    tree.die(init)
    assert not tree.host.in_use("finished", holder)


def test_the_file_that_names_the_first_process_may_lie_elsewhere(tree):
    """As podman has it, whose bundle is on disk and outlives the container."""
    holder = of_kind(tree, "finished", CONTAINER)
    tree.write("/run/userdata/pidfile", str(tree.pid("finished")))
    holder.pid_file, holder.cgroup = "/run/userdata/pidfile", ""
    tree.path(f"{holder.bundle}/init.pid").unlink()
    assert tree.host.in_use("finished", holder)
    tree.write("/run/userdata/pidfile", str(SHELL))
    assert not tree.host.in_use("finished", holder), "that number is another's by now"
    tree.write("/run/userdata/pidfile", "x")
    with pytest.raises(ValueError, match="pidfile holds 'x'"):
        tree.host.in_use("finished", holder)


def test_a_container_that_never_came_is_over_with_the_call_that_was_to_start_it(tree):
    holder = of_kind(tree, "nobody", CONTAINER)
    holder.since = tree.host.now()
    assert not tree.host.in_use("nobody", holder)
    holder.calls = [(SHELL, tree.started(SHELL))]
    assert tree.host.in_use("nobody", holder)
    tree.patience = 61
    assert not tree.host.in_use("nobody", holder), "a start that hangs"


@pytest.mark.parametrize("name", ["running", "finished", "below", "left-behind"])
def test_a_job_is_in_use_while_anything_lives_in_its_control_group(tree, name):
    holder = of_kind(tree, name, JOB)
    its = tree.its(name) | ({551} & tree.alive())
    assert tree.host.in_use(name, holder)
    assert tree.host.clear(name, holder)
    assert its & {*tree.killed}
    assert not tree.host.in_use(name, holder)
    assert not tree.host.has_leftovers(name, holder)
    assert tree.host.is_gone(name, holder)


def test_a_unit_may_take_a_minute_to_come_and_not_to_go(tree):
    holder = of_kind(tree, "nobody", JOB)
    holder.since = tree.host.now()
    assert tree.host.in_use("nobody", holder)
    tree.patience = 59.9
    assert tree.host.in_use("nobody", holder)
    tree.patience = 60.1
    assert not tree.host.in_use("nobody", holder)
    tree.patience = 0
    seen = of_kind(tree, "finished", JOB)
    seen.since = tree.host.now()
    assert tree.host.in_use("finished", seen)
    assert seen.execs, "noted for whoever looks next"
    shutil.rmtree(tree.path(tree.host_folder("finished")))
    assert not tree.host.in_use("finished", seen)


@pytest.mark.parametrize("kind", [CONTAINER, JOB])
def test_who_keeps_devices_for_another_kind_uses_them(tree, kind):
    holder = of_kind(tree, "nobody", kind)
    holder.keeper, tree.patience = (SHELL, tree.started(SHELL)), 10**6
    assert tree.host.in_use("nobody", holder)
    tree.die(SHELL)
    assert not tree.host.in_use("nobody", holder)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (HEX, True),
        (f"libpod-{HEX}", True),
        (f"libpod-{HEX}.scope", True),
        (f"libpod-payload-{HEX}", True),
        (f"docker-{HEX}.scope", True),
        (f"{HEX}.scope", True),
        (f"libpod-conmon-{HEX}.scope", False),
        (f"{HEX}-x", False),
        (f"x{HEX}", False),
    ],
)
def test_the_groups_of_engines_bear_their_containers_names(name, found):
    assert names_container(f"/machine.slice/{name}", HEX) is found


def test_a_unit_is_its_group():
    assert names_container("/gpu.slice/gpu-run-1a2b.scope", "gpu-run-1a2b.scope")
    assert not names_container("/gpu.slice/gpu-run-1a2b.scope/x", "gpu-run-1a2b.scope")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('docker container "train"', 'docker container "train"'),
        ("a\nb\x1b[31mc\u202ed", "a?b?[31mc?d"),
        ("x" * 81, "x" * 79 + "…"),
        ("x" * 80, "x" * 80),
        ("", ""),
    ],
)
def test_what_others_say_of_themselves_is_one_short_line(said, shown):
    assert readable(said) == shown
    holder = Holder("/b", ["GPU-0"], [], exclusive=True, since=0)
    found = {**holder.as_json(), "who": said}
    assert Holder.parse("x", found).who == shown


class Machine:
    """A machine on which these use their devices; see leases.Facts."""

    def __init__(self, *users):
        self.users, self.clock, self.looked, self.mark = {*users}, 1000.0, {}, None

    def now(self):
        return self.clock

    def me(self):
        return 1, 1

    def alive(self, call):
        return True

    def in_use(self, container, holder):
        return container in self.users

    def is_gone(self, container, holder):
        return False

    def clear(self, container, holder):
        return True

    def planned_cgroup(self, container, path):
        return path

    def sleep(self, seconds):
        pass


@pytest.fixture
def shelf(tmp_path):
    return Store(str(tmp_path / "leases"))


def policy(**changes):
    return Policy({**content(gpus=GPUS), **changes})


def acquire(shelf, machine, name, count=1, told=None, **request):
    asked = broker.Request(name, "", f"/x/{name}")
    for key, value in {"kind": JOB, **request}.items():
        setattr(asked, key, value)
    decision = Decision(name)
    decision.asked = count
    allowed = policy(wait_timeout=0 if told is None else 100)
    return broker.acquire(shelf, machine, iter(lambda: allowed, None), asked, decision, told=told)


def test_a_lease_tells_its_kind_and_who_it_is(shelf):
    machine = Machine("train", "job")
    acquire(shelf, machine, "job", who="gpu-run of alice: python train.py", named=IDS[1:])
    acquire(shelf, machine, "train", who="docker container\n", kind=CONTAINER, pid_file="/p")
    holders = shelf.read().holders
    assert [(each.kind, each.who, each.gpus) for each in holders.values()] == [
        (JOB, "gpu-run of alice: python train.py", IDS[1:]),
        (CONTAINER, "docker container?", IDS[:1]),
    ]
    assert holders["train"].pid_file == "/p"
    # A table that is made anew from the records tells the same.
    again = Store(shelf.folder)
    os.unlink(f"{shelf.folder}/leases.json")
    assert again.read().as_json()["holders"].keys() == {"job", "train"}
    assert again.read().holders["job"].kind == JOB


@pytest.mark.parametrize("kind", [CONTAINER, JOB])
def test_others_are_refused_for_the_same_reasons(shelf, kind):
    machine = Machine("train", "step")
    acquire(shelf, machine, "train", who='docker container "train"', kind=CONTAINER)
    machine.clock += 720
    with refuses("wait-timeout") as caught:
        acquire(shelf, machine, "late", named=IDS[:1], kind=kind)
    assert str(caught.value).startswith(
        "timed out after 0 s waiting for GPU 0. In use: GPU 0 by docker container "
        '"train" for 12 min. Try again later'
    )
    with refuses("too-few-gpus") as caught:
        acquire(shelf, machine, "large", count=3, kind=kind)
    assert str(caught.value) == (
        f"this {NOUNS[kind]} needs 3 GPUs; this worker has 2 available. Request fewer GPUs"
    )
    with refuses("gpu-not-offered") as caught:
        acquire(shelf, machine, "odd", named=["GPU-x"], kind=kind)
    assert str(caught.value).startswith(
        f"GPU GPU-x is not offered to {NOUNS[kind]}s on this worker. Available: GPU 0 ("
    )


def test_who_waits_is_told_where_it_stands(shelf):
    machine, told = Machine("step", "train"), []
    acquire(shelf, machine, "step", kind="step")
    acquire(shelf, machine, "train", kind=CONTAINER, who='podman container "train"')
    machine.clock += 720

    def look(place):
        told.append((place.words, place.number, [each.name for each in place.held]))
        if len(told) == 2:
            machine.users.clear()

    acquire(shelf, machine, "late", told=look)
    words = (
        "position 1 in the queue; CI task step holds GPU 0, 12 min; "
        'podman container "train" holds GPU 1, 12 min'
    )
    assert told == [(words, 1, ["step", "train"])] * 2
    assert shelf.read().waiters == []


def test_who_waits_reads_what_is_being_handed_over(shelf):
    machine, told = Machine("step"), []
    acquire(shelf, machine, "step", kind="step")
    acquire(shelf, machine, "train", kind=CONTAINER, who='podman container "train"')
    with shelf as table:
        table.holders["train"].handing = (2, 2), machine.clock

    def look(place):
        told.append(place.words)
        machine.clock += 30 if len(told) == 1 else leases.LONGEST_LOOK

    acquire(shelf, machine, "late", told=look)
    held = "position 1 in the queue; CI task step holds GPU 0, 0 s; "
    assert told[0] == f'{held}podman container "train" is releasing GPU 1'
    assert "late" in shelf.read().holders
    with shelf as table:
        table.holders["late"].handing = (2, 2), machine.clock
    with refuses("wait-timeout") as caught:
        acquire(shelf, machine, "later")
    assert "GPU 1 is being released by gpu-run command late" in str(caught.value)
    assert "GPU 0 by CI task step for " in str(caught.value)


def test_who_hangs_up_waits_no_more(shelf):
    machine = Machine("a")
    acquire(shelf, machine, "a", named=IDS[:1])

    def hang_up(place):
        assert [waiter.named for waiter in shelf.read().waiters] == [IDS[:1]]
        assert [held.device.id for held in place.held] == IDS[:1]
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        acquire(shelf, machine, "b", named=IDS[:1], told=hang_up)
    assert shelf.read().waiters == []
    assert [*shelf.read().holders] == ["a"]


def test_a_position_counts_the_requests_that_came_before():
    table = Table({})
    for place in range(2):
        table.waiters.append(leases.Waiter(f"w{place}", (1, 1), 1, 0))
    waiter = leases.Waiter("me", (2, 2), 1, 9)
    assert Place(table, [], waiter, 10).words == "position 3 in the queue"


def test_what_is_over_is_given_back_at_once(shelf):
    machine = Machine("job")
    acquire(shelf, machine, "job")
    assert not broker.give_back(shelf, machine, "job"), "it is in use"
    assert shelf.has("job")
    machine.users.clear()
    assert broker.give_back(shelf, machine, "job")
    assert not shelf.has("job")
    assert shelf.read().holders == {}
    assert broker.give_back(shelf, machine, "job"), "a second time"


def test_no_record_is_swept_while_its_holder_has_a_lease(shelf):
    """A job has no bundle, and that alone told when a record was over."""
    machine = Machine("job", "train")
    acquire(shelf, machine, "job")
    acquire(shelf, machine, "train", kind=CONTAINER)
    broker.do_without(shelf, machine, "step", "/", Grant(NVIDIA, []))
    assert shelf.has("job")
    assert shelf.has("train")
    machine.users.clear()
    acquire(shelf, machine, "next", count=2)
    with shelf:
        shelf.put("other", "/", Grant(NVIDIA, []))
    assert [shelf.has(name) for name in ("job", "train", "next")] == [False, False, True]


def test_a_process_comes_to_no_container_that_is_over(shelf):
    machine = Machine("train")
    acquire(shelf, machine, "train", kind=CONTAINER)
    machine.users.clear()
    with refuses("container-ended"):
        broker.resume(shelf, machine, policy, Decision("train"))


def test_what_a_release_before_this_one_wrote_is_a_step(shelf):
    holder = Holder("/b", IDS[:1], [], exclusive=True, since=0)
    found = {
        key: value
        for key, value in holder.as_json().items()
        if key not in ("kind", "who", "pid_file")
    }
    assert Holder.parse("x", json.loads(json.dumps(found))).as_json() == holder.as_json()


SLICE = "gpucirunner-a1.slice"
INSIDE = f"/gpucirunner.slice/{SLICE}/docker-train.scope"


def runner(shelf, machine, name=SLICE, count=1):
    machine.users.add(name)
    asked = broker.Request(name, "", f"/gpucirunner.slice/{name}")
    asked.kind, decision = RUNNER, Decision(name)
    decision.asked = count
    broker.acquire(shelf, machine, iter(policy, None), asked, decision)


def lend(shelf, machine, count: int | None = 1, group=INSIDE, **request):
    asked, decision = broker.Request("train", "/bundle", group), Decision("train")
    asked.kind = CONTAINER
    for key, value in request.items():
        setattr(asked, key, value)
    decision.asked = len(asked.named) or count
    return broker.lend(shelf, machine, iter(policy, None), asked, decision)


@pytest.mark.parametrize("group", ["/x/train", "/gpucirunner.slicer/train", "/system.slice/train"])
def test_a_container_that_is_no_jobs_is_lent_nothing(shelf, group):
    machine = Machine()
    runner(shelf, machine)
    assert lend(shelf, machine, group=group) is None
    assert not shelf.has("train")


def test_a_container_of_a_job_shares_the_jobs_lease(shelf):
    machine = Machine()
    runner(shelf, machine, "gpucirunner-b2.slice")
    runner(shelf, machine)
    for asked in ({"count": 1}, {"count": None}, {"named": IDS[1:]}):
        assert lend(shelf, machine, **asked).ids == IDS[1:]
    assert len(shelf.read().holders) == 2
    record = broker.resume(shelf, machine, policy, Decision("train"))
    assert (record.gpus, record.lender) == (IDS[1:], SLICE)
    assert "train" not in shelf.read().holders


@pytest.mark.parametrize("asked", [{"count": 2}, {"named": IDS[:1]}, {"named": IDS}])
def test_a_container_gets_no_more_than_its_job_has(shelf, asked):
    machine = Machine()
    runner(shelf, machine, "gpucirunner-b2.slice")
    runner(shelf, machine)
    with refuses("not-in-job") as caught:
        lend(shelf, machine, **asked)
    assert "only what its job has: GPU 1. Request" in str(caught.value)
    assert not shelf.has("train")


def test_a_container_of_a_job_without_a_gpu_or_that_is_over_gets_none(shelf):
    machine = Machine()
    with refuses("not-in-job") as caught:
        lend(shelf, machine, count=None)
    assert "only what its job has: none" in str(caught.value)
    runner(shelf, machine)
    with shelf as table:
        table.holders[SLICE].handing = machine.me(), machine.clock
    with refuses("not-in-job") as caught:
        lend(shelf, machine)
    assert "none" in str(caught.value)


def test_a_container_is_not_lent_what_its_image_cannot_use(shelf):
    machine = Machine()
    runner(shelf, machine)
    with refuses("not-in-job") as caught:
        lend(shelf, machine, unfit={IDS[0]: "GPU 0 is too old"})
    assert "GPU 0, and GPU 0 is too old" in str(caught.value)


def test_what_was_lent_ends_with_the_lease_and_is_nobodys_lease(shelf):
    machine = Machine()
    runner(shelf, machine)
    lend(shelf, machine)
    os.unlink(f"{shelf.folder}/leases.json")
    assert [*shelf.read().holders] == [SLICE], "rebuilt"
    assert broker.give_back(shelf, machine, SLICE, force=True)
    with refuses("container-ended"):
        broker.resume(shelf, machine, policy, Decision("train"))
    with shelf:
        shelf.put("other", "/", Grant(NVIDIA, []))
    assert not shelf.has("train")
