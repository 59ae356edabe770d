# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The store of leases: its files, what happens when they are lost or damaged, and its cost."""

import itertools
import json
import os
import pathlib
import stat

import pytest

from gpu_runtime import lease_manager as broker
from gpu_runtime import lease_store as store
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder, Waiter
from gpu_runtime.refusal import Refused
from tests.unit.grants import NVIDIA
from tests.unit.refusals import refuses

IDS = [device.id for device in NVIDIA.devices]
HOLDER = Holder("/b", ["GPU-0"], [(1, 2)], exclusive=True, since=1).as_json()
# What a release before this one did not write.
SINCE_LATER = {"nodes", "keeper", "session_limit", "step_ended", "waited"} | {
    *("kind", "who", "pid_file", "handing", "unified")
}
WAITER = Waiter("ID", (1, 2), 1, 1).as_json()


class Machine:
    """A machine of which only these containers use their devices; see leases.Facts."""

    def __init__(self, *users):
        self._users, self.looked, self.mark = users, {}, None

    def in_use(self, container, holder):
        return container in self._users

    def clear(self, container, holder):
        return True

    def alive(self, call):
        return False

    def me(self):
        return 1, 1

    def now(self):
        return 100.0

    def cgroup(self, container, bundle):
        return ""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "gpu-ci" / "leases"


@pytest.fixture
def leases(folder):
    return Store(str(folder))


def record(leases, container, ids, bundle="/"):
    devices = [device for device in NVIDIA.devices if device.id in ids]
    holder = Holder(bundle, ids, [(1, 2)], exclusive=True, since=1) if ids else None
    with leases:
        leases.put(container, bundle, Grant(NVIDIA, devices), holder)


def damaged(part, value):
    """A table that is whole but for one part."""
    return json.dumps({"holders": {"ID": HOLDER}, "waiters": [WAITER], part: value})


def without(name):
    return {key: value for key, value in HOLDER.items() if key != name}


def names(folder):
    return sorted(path.name for path in (folder / "containers").iterdir())


def test_the_files_of_a_store_and_their_modes(folder, leases):
    before = os.umask(0)
    try:
        record(leases, "ID", IDS[:1], "/b")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(folder.parent.parent)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder.parent, folder, *folder.rglob("*")]
    }
    assert modes == {
        "gpu-ci": 0o755,
        "gpu-ci/leases": 0o700,
        "gpu-ci/leases/leases.json": 0o600,
        "gpu-ci/leases/containers": 0o700,
        "gpu-ci/leases/containers/ID.json": 0o600,
    }
    found = json.loads((folder / "containers" / "ID.json").read_text())
    assert found == {
        "bundle": "/b",
        "environment": Grant(NVIDIA, NVIDIA.devices[:1]).environment,
        "groups": [],
        "gpus": IDS[:1],
        "holder": Holder("/b", IDS[:1], [(1, 2)], exclusive=True, since=1).as_json(),
        "lender": "",
    }


def test_a_table_is_read_as_it_was_saved(leases):
    holder = Holder("/b", IDS, [(7, 8)], exclusive=True, since=1.5)
    holder.execs, holder.stuck, holder.cgroup = True, True, "/garden/ID"
    holder.nodes, holder.keeper = ["/dev/nvidia0"], (11, 12)
    holder.session_limit, holder.step_ended, holder.waited = 1800, 2.5, 12.5
    waiter = Waiter("W", (9, 10), 2, 3)
    waiter.overtaken = 4
    with leases as table:
        table.holders["ID"] = holder
        table.waiters = [waiter]
    found = leases.read()
    assert found.holders["ID"].as_json() == holder.as_json()
    assert found.waiters[0].as_json() == waiter.as_json()
    # Found in JSON they must compare as calls do.
    assert found.waiters[0].call == (9, 10)
    assert found.holders["ID"].calls == [(7, 8)]
    assert found.holders["ID"].keeper == (11, 12)


def test_holders_of_the_release_before_are_read_too(folder, leases):
    """A refresh must not take the leases of jobs that run."""
    record(leases, "ID", [])
    old = {
        "bundle": "/b", "gpus": IDS, "alone": True, "since": 1.5, "execs": True, "calls": [[7, 8]],
        "cgroup": "/garden/OLD", "stuck": False,
    }  # fmt: skip
    waiter = {"container": "W", "call": [9, 10], "count": 2, "since": 3}
    table = {"holders": {"OLD": old}, "waiters": [waiter]}
    (folder / "leases.json").write_text(json.dumps(table))
    found = leases.read()
    assert found.free(IDS, exclusive=False) == []
    assert (found.holders["OLD"].cgroup, found.holders["OLD"].execs) == ("/garden/OLD", True)
    assert (found.waiters[0].call, found.waiters[0].overtaken) == ((9, 10), 0)
    (folder / "leases.json").unlink()
    told = {"bundle": "/b", "environment": {"GPU_COUNT": "2"}, "groups": [], "gpus": IDS}
    (folder / "containers" / "OLD.json").write_text(json.dumps(told))
    assert leases.read().free(IDS, exclusive=True) == []


def test_what_did_not_change_is_not_written(folder, leases):
    with leases as table:
        table.holders["ID"] = Holder("/b", IDS, [(7, 8)], exclusive=True, since=1.5)
    before = (folder / "leases.json").stat()
    with leases as table:
        table.waiters = [*table.waiters]
    assert (folder / "leases.json").stat().st_ino == before.st_ino


def test_a_refusal_saves_what_was_found_and_a_fault_does_not(leases):
    def hold(name, fault):
        with leases as table:
            table.holders[name] = Holder("/b", IDS, [], exclusive=True, since=1)
            raise fault

    with pytest.raises(Refused):
        hold("refused", Refused("wait-timeout", "x"))
    with pytest.raises(OSError, match="x"):
        hold("failed", OSError("x"))
    assert [*leases.read().holders] == ["refused"]
    with leases:
        pass  # neither kept the lock


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "{}x"),
        # Whoever takes these for empty gives a GPU away twice.
        *(damaged("holders", value) for value in ([], None, {"ID": 7}, {"ID": {}})),
        *(damaged("holders", {"ID": without(name)}) for name in sorted({*HOLDER} - SINCE_LATER)),
        # With the root group for its own, the end of a holder would be that of the machine.
        *(
            damaged("holders", {"ID": {**HOLDER, "cgroup": path}})
            for path in ("/", "/garden", "/garden/OTHER", "/garden/ID/..", "/garden/XID", "ID/", 7)
        ),
        *(damaged("holders", {"ID": {**HOLDER, "nodes": value}}) for value in (7, [7], None)),
        *(damaged("holders", {"ID": {**HOLDER, "keeper": value}}) for value in (7, [7], "12")),
        damaged("holders", {"ID": {**HOLDER, "session_limit": "1800"}}),
        damaged("holders", {"ID": {**HOLDER, "waited": "12"}}),
        *(damaged("holders", {"ID": {**HOLDER, "kind": value}}) for value in ("pod", 7, None, [])),
        *(damaged("holders", {"ID": {**HOLDER, "who": value}}) for value in (7, None)),
        *(damaged("holders", {"ID": {**HOLDER, "pid_file": value}}) for value in (7, None)),
        *(damaged("holders", {"ID": {**HOLDER, "calls": value}}) for value in (7, [[1]], [7])),
        damaged("holders", {"ID": {**HOLDER, "gpus": None}}),
        *(damaged("waiters", value) for value in ({}, [{}], [7])),
        *(damaged("waiters", [{**WAITER, name: "1"}]) for name in ("call", "count", "since")),
        *(damaged("waiters", [{**WAITER, "named": value}]) for value in ("GPU-0", [7], None)),
    ],
)
def test_a_damaged_table_is_refused_with_the_remedy(folder, leases, text):
    record(leases, "ID", IDS[:1])
    (folder / "leases.json").write_text(text)
    with refuses("lease-table-damaged") as caught, leases:
        pass
    assert f"{folder}/leases.json is damaged (" in str(caught.value)
    assert "operator can remove that file" in str(caught.value)
    assert (folder / "leases.json").read_text() == text, "nothing is hidden from who looks"
    (folder / "leases.json").unlink()
    with leases as table:
        assert table.holders["ID"].gpus == IDS[:1]


def test_a_lost_table_is_made_anew_from_the_containers(folder, leases):
    record(leases, "one", IDS[:1])
    record(leases, "two", IDS[1:])
    record(leases, "none", [])
    (folder / "leases.json").unlink()
    with leases as table:
        assert {name: holder.gpus for name, holder in table.holders.items()} == {
            "one": IDS[:1],
            "two": IDS[1:],
        }
        assert table.free(IDS, exclusive=True) == []
    assert sorted(json.loads((folder / "leases.json").read_text())["holders"]) == ["one", "two"]


def test_a_lost_table_keeps_what_a_create_in_flight_was_granted(folder, leases):
    """To remove the table is the remedy for a damaged one, at any moment."""
    me = Host().me()
    holder = Holder("/nowhere", IDS[:1], [me], exclusive=True, since=Host.now())
    with leases:
        leases.put("ID", "/nowhere", Grant(NVIDIA, NVIDIA.devices[:1]), holder)
    (folder / "leases.json").unlink()
    with leases as table:
        assert Host().in_use("ID", table.holders["ID"])


@pytest.mark.parametrize("text", ["", "{", "{}", '{"environment":{"A":"b"},"holder":{"gpus":7}}'])
def test_a_lost_table_and_a_damaged_record_refuse_in_words(folder, leases, text):
    """Which devices that container has nobody knows, so nobody gets any."""
    record(leases, "one", IDS[:1])
    (folder / "containers" / "ID.json").write_text(text)
    (folder / "leases.json").unlink()
    with refuses("lease-table-damaged") as caught:
        leases.read()
    assert "containers/ID.json, from which it is rebuilt, is damaged (" in str(caught.value)


def test_an_error_at_a_record_is_not_its_absence(folder, leases):
    record(leases, "one", IDS[:1])
    (folder / "leases.json").unlink()
    path = folder / "containers/one.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        leases.read()
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        leases.has("one")


def test_a_lost_table_gives_no_gpu_to_a_hijack_that_somebody_else_has(folder, leases):
    record(leases, "over", IDS[:1])
    record(leases, "running", IDS[:1])
    (folder / "leases.json").unlink()
    with refuses("gpu-given-back"):
        broker.resume(leases, Machine("running"), lambda: NVIDIA, Decision("over"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"environment":{}}', '{"environment":[1],"gpus":[]}']
)
def test_a_damaged_record_is_no_record(folder, leases, text):
    record(leases, "ID", IDS[:1])
    (folder / "containers" / "ID.json").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011  in the words of whoever finds it
        leases.record("ID")


def test_a_record_may_be_forgotten_twice(folder, leases):
    record(leases, "ID", [])
    leases.forget("ID")
    leases.forget("ID")
    assert names(folder) == []


def test_records_of_containers_that_are_gone_are_swept_a_few_at_a_time(
    tmp_path, folder, leases, monkeypatch
):
    (tmp_path / "bundle").mkdir()
    for number in range(40):
        record(leases, f"alive{number}", [], str(tmp_path / "bundle"))
    for number in range(60):
        path = folder / "containers" / f"gone{number}.json"
        path.write_text((folder / "containers" / "alive0.json").read_text())
        path.write_text(path.read_text().replace(str(tmp_path / "bundle"), "/nowhere"))
    (folder / "containers" / "damaged.json").write_text("{")
    (folder / "containers" / "half.json.gpu-ci").write_text("{")
    pids = itertools.count(4711)  # each call of the runtime is another process
    monkeypatch.setattr(store.os, "getpid", lambda: next(pids))
    looked = []

    class Counted(Store):
        def record(self, container):
            looked.append(container)
            return super().record(container)

    leases = Counted(str(folder))
    left = names(folder)
    for _ in range(1000):
        looked.clear()
        record(leases, "alive0", [], str(tmp_path / "bundle"))
        assert len(looked) <= 4
        left = names(folder)
        if not any(name.startswith("gone") for name in left):
            break
    else:
        pytest.fail(f"never swept: {left}")
    assert "damaged.json" in left, "an exec into its container is refused with that name"
    assert len([name for name in left if name.startswith("alive")]) == 40


def test_a_store_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OSError, match="Not a directory"),
        Store(str(tmp_path / "file" / "x" / "y")),
    ):
        pass


def test_no_descriptor_is_left(folder, leases):
    record(leases, "ID", IDS)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with leases:
            pass
        (folder / "leases.json").write_text("{")
        with pytest.raises(Refused), leases:
            pass
        (folder / "leases.json").unlink()
    assert len(os.listdir("/proc/self/fd")) == before
    assert pathlib.Path(folder).is_dir()
