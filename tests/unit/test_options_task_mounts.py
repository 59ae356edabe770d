# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""task-mounts from the option to the list that the wrapper reads, and what status says of it."""

import dataclasses
import json

import pytest
from ops import testing

from ci.concourse.plan.model import Rivals, planned
from gpu_agent.model.keep import Keep
from gpu_agent.runtime import install
from gpu_agent.runtime import task_mounts as folders
from gpu_agent.runtime.settings import Folder, GpuPlan
from gpu_runtime import task_mounts as given
from options.part import Part
from tests.unit.situations import (
    codes,
    gpu_unit,
    make_plan,
    parse,
    refused,
    said,
    state,
    tsa,
    unit,
)
from tests.unit.wrapper_rig import TASKS

DATA = Folder("/srv/data", "/srv/data", writable=False)


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("/srv/data", DATA),
        ("/srv/data/", DATA),
        ("/srv/data:ro", DATA),
        ("/srv/data:rw", Folder("/srv/data", "/srv/data", writable=True)),
        ("/srv/uv:/root/.cache/uv", Folder("/srv/uv", "/root/.cache/uv", writable=False)),
        ("/srv/uv:/root/.cache/uv/:rw", Folder("/srv/uv", "/root/.cache/uv", writable=True)),
        ("/mnt/a@b/1+2=3_4-5.6:/data:ro", Folder("/mnt/a@b/1+2=3_4-5.6", "/data", writable=False)),
        ("/opt/models", Folder("/opt/models", "/opt/models", writable=False)),
        ("/var/cache/x", Folder("/var/cache/x", "/var/cache/x", writable=False)),
    ],
)
def test_a_folder(text, folder):
    assert parse(task_mounts=f" {text} ,, ").ci.worker.folders == (folder,)


def test_several():
    found = parse(task_mounts="/srv/data, /srv/cache:rw,/srv/cache:/elsewhere").ci.worker.folders
    assert [folder.target for folder in found] == ["/srv/data", "/srv/cache", "/elsewhere"]
    assert parse().ci.worker.folders == ()


@pytest.mark.parametrize(
    "text",
    [
        *("srv", "./srv", "/srv/../etc", "/srv/./x", "/srv//x", "/srv/a b", "//srv", "/srv/ü"),
        *(":rw", "rw", "/srv::rw", "/srv:x", "/srv:rw:rw", "/a:/b:/c", "/a:/b:rw:ro", "/srv:RW"),
        *('/srv/"x"', "/srv/$x", "/srv/\\x", "team=/srv/x", "~/x"),
    ],
)
def test_what_names_no_folder(text):
    assert "is not a folder" in refused(task_mounts=f"/mnt/good,{text}") or text == "/srv/x\n"


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        *(("/etc", "/etc"), ("/etc/ssl", "/etc"), ("/proc/1/root", "/proc"), ("/dev/shm", "/dev")),
        *(("/var", "/var/lib/cni"), ("/var/lib", "/var/lib/cni"), ("/opt", "/opt/concourse")),
        ("/var/lib/concourse/worker/volumes", "/var/lib/concourse"),
        *(("/var/lib/juju/agents", "/var/lib/juju"), ("/root/x", "/root"), ("/run/x", "/run")),
        *(("/opt/gpu-ci/lib", "/opt/gpu-ci"), ("/tmp/x", "/tmp"), ("/usr/share/x", "/usr")),
        *(("/var/backups/gpu-ci", "/var/backups"), ("/var/lib/containers", "/var/lib/containers")),
    ],
)
def test_what_is_the_machines_own(source, holds):
    text = refused(task_mounts=f"{source}:/data")
    assert f"is or contains {holds} of the machine: use a folder such as /srv/datasets" in text


@pytest.mark.parametrize("source", ["/home", "/home/", "/home/alice", "/home/alice/"])
def test_a_users_home_is_not_given(source):
    """A task's root may do there what that user may, as to let itself in."""
    assert "is or contains the home of a user" in refused(task_mounts=f"{source}:/data:rw")
    assert parse(task_mounts="/home/shared/datasets").ci.worker.folders


@pytest.mark.parametrize(
    ("target", "covers"),
    [
        *(("/tmp/build/e55deab7", "/tmp"), ("/tmp", "/tmp"), ("/scratch/x", "/scratch")),
        *(
            ("/etc/ssl/certs", "/etc"),
            ("/usr/lib", "/usr"),
            ("/var", "/var/run"),
            ("/dev", "/dev"),
        ),
    ],
)
def test_what_a_container_needs_is_not_covered(target, covers):
    text = refused(task_mounts=f"/srv/data:{target}")
    assert f"would cover {covers} in the container" in text


@pytest.mark.parametrize("other", ["/srv/data", "/srv/data/x", "/srv"])
def test_two_in_one_place(other):
    text = refused(task_mounts=f"/srv/data,/mnt/x:{other}:rw")
    assert text.endswith("overlaps the TARGET of another folder: use another TARGET")


def test_a_worker_without_gpus_gives_them_too():
    made = make_plan(unit(options={"task-mounts": "/srv/data"}))
    assert (made.ci.folders, made.gpu, planned(made).worker.wrapped) == ((DATA,), None, True)
    made = make_plan(gpu_unit(options={"task-mounts": "/srv/data"}))
    assert made.ci.folders == (DATA,)
    assert make_plan(unit()).ci.folders == ()
    assert make_plan(unit("web", options={"task-mounts": "/srv/data"})).ci.folders == ()


def test_a_unit_that_leaves_gives_none():
    found = dataclasses.replace(unit(options={"task-mounts": "/srv/data"}), leaving=True)
    assert make_plan(found).ci.folders == ()


@pytest.mark.parametrize("option", [{"task-mounts": "srv"}, {"deployment-mode": "x"}])
def test_a_bad_option_leaves_them_as_they_are(option):
    made = make_plan(unit(options={"task-mounts": "/srv/data", **option}))
    assert made.ci.folders is Keep.AS_IS


def test_another_runc_would_give_none():
    found = unit(options={"task-mounts": "/srv/data"}, rivals=Rivals(runc="/opt/x/runc"))
    assert codes(found) == [("blocked", "foreign-runc")]
    assert said(unit(rivals=Rivals(runc="/opt/x/runc"))) == []


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "LIST", tmp_path / "gpu-ci" / given.FILE)
    wrapped = []
    monkeypatch.setattr(install, "apply", wrapped.append)
    return folders.LIST, wrapped


def test_the_back_end_reads_what_the_charm_writes(place):
    path, wrapped = place
    uv = Folder("/srv/uv", "/root/.cache/uv", writable=True)
    assert folders.ensure((DATA, uv), Keep.AS_IS, "/r", TASKS)
    assert not folders.ensure((DATA, uv), Keep.AS_IS, "/r", TASKS)
    read = given.read(str(path))
    found = [(one.source, one.target, one.writable) for one in read]
    assert found == [dataclasses.astuple(DATA), dataclasses.astuple(uv)]
    assert wrapped == []
    assert not folders.ensure(Keep.AS_IS, None, "/r", TASKS)
    assert folders.ensure((), None, "/r", TASKS)
    assert not path.exists()
    assert not folders.ensure((), None, "/r", TASKS)


def test_for_folders_alone_the_wrapper_hands_out_no_gpu(place):
    _, wrapped = place
    folders.ensure((DATA,), None, "/r", TASKS)
    assert wrapped == [GpuPlan((), "", runc="/r", tasks=TASKS)]
    tasks = {"parent": "/tmp/build/", "others": ["get", "put", "run"]}
    told = json.loads(install.policy_text(*wrapped))
    assert told == {"version": 3, "tasks": tasks, "gpus": []}


def test_what_tasks_are_refused_for(place):
    path, _ = place
    assert folders.refused() == ""
    folders.ensure((Folder("/usr/share", "/data", writable=False),), None, "/r", TASKS)
    assert folders.refused() == ""
    folders.ensure((Folder("/nowhere/at-all", "/data", writable=False),), None, "/r", TASKS)
    assert folders.refused() == "/nowhere/at-all: /nowhere: No such file or directory"
    path.write_text("{")
    assert folders.refused().startswith(f"list of task-mounts folders {path}")


def test_the_operator_reads_it(context, rooms):
    before = state(relations=(tsa(),), task_mounts="/srv/data")
    after = context.run(context.on.config_changed(), before)
    assert rooms.folders == (DATA,)
    assert after.unit_status == testing.ActiveStatus("Worker ready")
    # The list is there before a task can ask for it, and the wrapper stays.
    order = ("folders.ensure", "launcher.ensure", "worker.apply")
    assert [call for call in rooms.calls if call in order] == [*order]
    assert "runtime.remove" not in rooms.calls
    rooms.refused_folder = "/srv/data: it is missing"
    after = context.run(context.on.update_status(), before)
    assert after.unit_status.name == "blocked"
    assert "task-mounts is unusable (/srv/data: it is missing)" in after.unit_status.message


def test_without_folders_and_gpus_there_is_no_wrapper(context, rooms):
    context.run(context.on.config_changed(), state(relations=(tsa(),)))
    assert rooms.folders == ()
    assert "runtime.remove" in rooms.calls


def test_a_bad_one_is_the_workers_and_freezes_no_gpu():
    (wrong,) = parse(task_mounts="x").wrong
    assert wrong.option == "task-mounts"
    assert parse(task_mounts="x").frozen == {Part.WORKER}
