# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web and worker are told in their environment files.

That Concourse reads these files, and restarts for them, is proven in tests/functional.
"""

import dataclasses
import functools
import pathlib
import re

import pytest

from ci.concourse import service
from ci.concourse.plan.model import planned
from ci.concourse.restart import running_steps as steps
from ci.concourse.web import web as concourse_web
from ci.concourse.worker import trusted_cas as certificates
from ci.concourse.worker import volumes
from ci.concourse.worker import worker as concourse_worker
from machine import files as machine_files
from machine import polling as waiting
from machine import systemd
from relations.model import Tsa
from tests.unit.situations import HOST_PEM, gpu_unit, make_plan, unit

GO_DURATION = re.compile(r"([0-9]+)s")


@pytest.fixture
def files(monkeypatch):
    """The files that would be written, by name; nothing is, and no service is started."""
    written = {}

    def ensure_file(path, content, **_):
        written[path.name] = content
        return True

    monkeypatch.setattr(machine_files, "ensure_file", ensure_file)
    monkeypatch.setattr(volumes, "choose", lambda had, _: had or "overlay")
    for module, names in (
        (service.files, ("ensure_directory", "ensure_absent")),
        (service.services, ("ensure_unit", "ensure_running", "main_pid")),
        (service.users, ("ensure_user", "exists")),
        (waiting, ("until",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, lambda *_, **__: 0)
    monkeypatch.setattr(systemd, "show", lambda *_: {})
    return written


def settings(text):
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def worker(files, made):
    concourse_worker.apply(
        dataclasses.replace(planned(made).worker, private_key=HOST_PEM), lambda _: None
    )
    return settings(files["worker.env"])


def web(files, made):
    concourse_web.apply(planned(made).web, lambda _: None)
    return settings(files["web.env"])


@pytest.mark.parametrize(
    ("earlier", "chosen", "anew"),
    [
        (None, "naive", False),
        (None, "overlay", False),
        # Before the charm chose, Concourse did, whatever the kernel said to it.
        ("CONCOURSE_NAME=a\n", "overlay", False),
        ("CONCOURSE_NAME=a\n", "naive", True),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=overlay\n", "overlay", False),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=overlay\n", "naive", True),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=naive\n", "naive", False),
    ],
)
def test_a_worker_begins_anew_where_its_volumes_would_be_found_empty(
    files, monkeypatch, tmp_path, earlier, chosen, anew
):
    done, environment = [], tmp_path / "worker.env"
    if earlier:
        environment.write_text(earlier)
    monkeypatch.setattr(concourse_worker, "_ENVIRONMENT", environment)
    monkeypatch.setattr(concourse_worker, "WORK_DIR", tmp_path)
    monkeypatch.setattr(volumes, "choose", lambda had, _: chosen)
    monkeypatch.setattr(concourse_worker, "retire", lambda *_: done.append("retired"))
    for name in ("remove_containers", "remove_network"):
        monkeypatch.setattr(
            concourse_worker.leftovers, name, lambda *_: done.append("worker.env" in files)
        )
    told = worker(files, make_plan(unit()))
    assert told["CONCOURSE_BAGGAGECLAIM_DRIVER"] == chosen
    # Nothing says the new driver before the old one's volumes are gone.
    gone = [False, False] if earlier else []
    assert done == (["retired", *gone] if anew else [])


def test_a_worker_without_gpus_keeps_concourses_own_limits(files):
    told = worker(files, make_plan(unit()))
    assert "CONCOURSE_CONTAINERD_REQUEST_TIMEOUT" not in told
    assert "CONCOURSE_MAX_ACTIVE_TASKS" not in told


def test_a_worker_outlasts_the_wait_for_a_gpu_and_says_how_many_tasks_it_takes(files):
    told = worker(files, make_plan(gpu_unit()))
    assert told["CONCOURSE_CONTAINERD_REQUEST_TIMEOUT"] == "300s"
    assert told["CONCOURSE_MAX_ACTIVE_TASKS"] == "2"


def test_a_web_outlasts_the_longest_wait_that_a_worker_makes_of_it(files):
    options = {"enable-gpu": True, "gpu-wait-timeout": "30m"}
    made = make_plan(unit("all", options=options, tsa=Tsa()))
    clocks = {
        "web": web(files, made)["CONCOURSE_GARDEN_REQUEST_TIMEOUT"],
        "worker": worker(files, made)["CONCOURSE_CONTAINERD_REQUEST_TIMEOUT"],
    }
    seconds = {name: int(GO_DURATION.fullmatch(text).group(1)) for name, text in clocks.items()}
    assert made.gpu.wait_timeout == 1800
    assert seconds == {"web": 2100, "worker": 1860}


@pytest.mark.parametrize(("version", "queues"), [("8.3.0", True), ("8.2.5", False)])
def test_a_web_queues_tasks_in_its_scheduler_from_8_3_on(files, version, queues):
    told = web(files, make_plan(unit("web", options={"concourse-version": version})))
    names = ("CONCOURSE_CONTAINER_PLACEMENT_STRATEGY", "CONCOURSE_MAX_ACTIVE_TASKS_PER_WORKER")
    expected = ("volume-locality,limit-active-tasks", "1000") if queues else (None, None)
    assert tuple(told.get(name) for name in names) == expected


@pytest.mark.parametrize(
    ("option", "url"),
    [
        ("", "http://10.0.0.7:8080"),
        ("https://ci.example.com/a/", "https://ci.example.com/a"),
        ('https://ci.example.com/a"b\\c$d`e\\"', 'https://ci.example.com/a"b\\c$d`e\\"'),
    ],
)
def test_a_webs_url_is_read_back_as_it_was_told(files, monkeypatch, tmp_path, option, url):
    monkeypatch.setattr(concourse_web, "ENVIRONMENT", tmp_path / "web.env")
    assert concourse_web.url() is None
    web(files, make_plan(unit("web", options={"external-url": option})))
    (tmp_path / "web.env").write_text(files["web.env"])
    assert concourse_web.url() == url


def test_what_each_is_told_is_no_business_of_the_other(files):
    """Concourse's worker refuses to start with a variable of the other's container runtime."""
    made = make_plan(unit("all", options={"enable-gpu": True}, tsa=Tsa()))
    assert not [name for name in worker(files, made) if name.startswith("CONCOURSE_GARDEN_")]
    assert not [name for name in web(files, made) if name.startswith("CONCOURSE_CONTAINERD_")]


def test_what_the_operator_says_of_a_worker_reaches_it(files, monkeypatch, tmp_path):
    names = ("TEAM", "CONTAINERD_MAX_CONTAINERS", "CONTAINERD_MTU", "CERTS_DIR")
    told = worker(files, make_plan(unit()))
    assert [told.get(f"CONCOURSE_{name}") for name in names[:2]] == [None, None]
    assert "CONCOURSE_CERTS_DIR" not in told
    options = {"only-team": "team-a", "worker-settings": "max-containers=500,mtu=1380"}
    monkeypatch.setattr(certificates, "ensure", lambda pem, had: "/etc/concourse/certs/x")
    told = worker(files, make_plan(unit(options=options)))
    expected = ["team-a", "500", "1380", "/etc/concourse/certs/x"]
    assert [told[f"CONCOURSE_{name}"].strip('"') for name in names] == expected


def test_cas_of_the_operators_stand_beside_the_machines(monkeypatch, tmp_path):
    machines = tmp_path / "ssl.crt"
    machines.write_text("the machine's\n")
    monkeypatch.setattr(certificates, "FOLDER", tmp_path / "concourse" / "certs")
    monkeypatch.setattr(certificates, "_MACHINES", machines)
    first = pathlib.Path(certificates.ensure("ours\n"))
    assert (first / "ca-certificates.crt").read_text() == "the machine's\nours\n"
    assert certificates.ensure("ours\n") == str(first)
    # Concourse knows its copy of the folder by the path alone.
    second = pathlib.Path(certificates.ensure("others\n"))
    assert [path.name for path in certificates.FOLDER.iterdir()] == [second.name]
    assert second != first
    # A get of the process that runs reads them until it is restarted.
    machines.unlink()
    third = pathlib.Path(certificates.ensure("others\n", str(second)))
    assert second.exists()
    assert certificates.ensure("", str(third)) == ""
    assert [path.name for path in certificates.FOLDER.iterdir()] == [third.name]
    third = pathlib.Path(certificates.ensure("others\n", str(third)))
    assert (third / "ca-certificates.crt").read_text() == "others\n"
    assert certificates.ensure("") == ""
    assert not certificates.FOLDER.exists()
    assert not certificates.remove()


@pytest.mark.parametrize(
    ("earlier", "team", "leaves"),
    [
        (None, "a", False),
        ('CONCOURSE_NAME="w"\n', "", False),
        ('CONCOURSE_NAME="w"\n', "a", True),
        ('CONCOURSE_NAME="w"\nCONCOURSE_TEAM="a"\n', "a", False),
        ('CONCOURSE_NAME="w"\nCONCOURSE_TEAM="a"\n', "b", True),
        ('CONCOURSE_NAME="w"\nCONCOURSE_TEAM="a"\n', "", True),
    ],
)
def test_a_worker_leaves_web_before_it_comes_back_as_another_teams(
    files, monkeypatch, tmp_path, earlier, team, leaves
):
    """Web takes none whose name it knows as another team's, or everybody's."""
    environment, left = tmp_path / "worker.env", []
    if earlier:
        environment.write_text(earlier)

    def retire(seconds, _):
        left.append((seconds, "worker.env" in files))

    monkeypatch.setattr(concourse_worker, "_ENVIRONMENT", environment)
    monkeypatch.setattr(concourse_worker, "retire", retire)
    worker(files, make_plan(unit(options={"only-team": team})))
    # As long as builds may take, and before anything tells of the new team.
    assert left == ([(300, False)] if leaves else [])


@pytest.mark.parametrize(("earlier", "stays"), [(None, False), ("CONCOURSE_NAME=w\n", True)])
def test_what_another_unit_has_left_in_a_storage_goes(
    files, monkeypatch, tmp_path, earlier, stays
):
    gone = []
    (tmp_path / "work" / "volumes").mkdir(parents=True)
    if earlier:
        (tmp_path / "worker.env").write_text(earlier)
    monkeypatch.setattr(concourse_worker, "_ENVIRONMENT", tmp_path / "worker.env")
    monkeypatch.setattr(concourse_worker, "WORK_DIR", tmp_path / "work")
    ended = ["remove_containers", "remove_network"]
    for name in ended:
        call = functools.partial(lambda name, *_: gone.append(name), name)
        monkeypatch.setattr(concourse_worker.leftovers, name, call)
    monkeypatch.setattr(machine_files, "ensure_absent", gone.append)
    worker(files, make_plan(unit()))
    work = [*ended, tmp_path / "work"]
    assert [one for one in gone if one in work] == ([] if stays else work)


def test_the_log_says_why_the_worker_starts_anew(files, monkeypatch, caplog):
    caplog.set_level("INFO")
    made = make_plan(unit(options={"extra-tags": "rack-8"}))
    assert planned(made).worker.tags == ("rack-8",)
    for started, said in (
        ("", "other tags: rack-8; before: none"),
        ("concourse worker --tag=rack-7", "other tags: rack-8; before: rack-7"),
        ("concourse worker --tag=rack-8", "other settings, another release"),
    ):
        shown = {"ExecStart": started}
        monkeypatch.setattr(systemd, "show", lambda *_, shown=shown: shown)
        caplog.clear()
        worker(files, made)
        assert said in caplog.text


@pytest.mark.parametrize(
    ("running", "refused", "waited", "last"),
    [
        ((), False, 300, "no step runs, web has to take it off its list, which has 300 s left"),
        (("a",), False, 300, "its builds have 300 s left"),
        (("a",), True, 45, "web takes nothing of it any more, its builds have 30 s left"),
    ],
)
def test_a_worker_that_web_refuses_is_not_waited_for_in_vain(
    monkeypatch, running, refused, waited, last
):
    """Its application was removed: web takes its key no more, and hears of no build's end."""
    now, said = [0.0], []

    def wait(_, seconds):
        now[0] += seconds
        return False

    for name, answer in (
        ("_runs", lambda _: now[0] < waited),
        ("_wait_until_gone", wait),
        ("_is_refused", lambda: refused),
        ("_may_have_web", lambda: True),
    ):
        monkeypatch.setattr(concourse_worker, name, answer)
    for name in ("ensure_not_enabled", "ensure_disabled", "signal"):
        monkeypatch.setattr(concourse_worker.services, name, lambda *_: True)
    monkeypatch.setattr(systemd, "main_pid", lambda _: 7)
    monkeypatch.setattr(steps, "running", lambda: running)
    monkeypatch.setattr(concourse_worker.time, "monotonic", lambda: now[0])
    concourse_worker.retire(300, said.append)
    assert now[0] == pytest.approx(waited, abs=0.1)
    assert f"Retiring the worker: {last}" in said
