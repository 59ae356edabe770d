# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse's web and worker are told in their environment files.

That Concourse reads these files, and restarts for them, is proven in tests/functional.
"""

import pathlib
import re

import pytest

from ci.concourse import service
from ci.concourse.plan.model import planned
from ci.concourse.web import files as web_files
from ci.concourse.web import web as concourse_web
from ci.concourse.worker import trusted_cas as certificates
from ci.concourse.worker import worker as concourse_worker
from ci.concourse.worker.departure import Departure
from ci.concourse.worker.former import Former
from ci.concourse.worker.keys import WorkerKeys
from relations.model import Tsa
from tests import certificates as made_certificates
from tests.unit.situations import gpu_unit, make_plan, unit

CA = made_certificates.ca()
GO_DURATION = re.compile(r"([0-9]+)s")


def settings(text):
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def written(path, values):
    """What the settings of a service say, after they were written to this file."""
    service.ensure_settings(path, path.name, values)
    return settings(path.read_text())


def worker(folder, made, driver="overlay"):
    def trust(pem):
        return certificates.ensure(pem, "", folder / "certs", folder / "no-cas-of-the-machine")

    plan = planned(made).worker
    values = concourse_worker.settings(plan, WorkerKeys(folder), driver, trust)
    return written(folder / "worker.env", values)


def web(folder, made):
    return written(folder / "web.env", web_files.Files().settings(planned(made).web))


class Past:
    """What there is of a worker that was set up before, and what was done to it."""

    def __init__(self, folder, earlier, chosen):
        self.done, self.work = [], folder / "work"
        (self.work / "volumes").mkdir(parents=True)
        if earlier:
            (folder / "worker.env").write_text(earlier)
        self.former = Former(
            *(folder / "worker.env", self.work, 30.0, self.retire),
            choose=lambda *_: chosen,
            end=self.end,
        )

    def retire(self, seconds, _):
        self.done.append(f"retired within {seconds:.0f} s")

    def end(self, _release, work):
        assert work == self.work
        assert work.exists(), "as long as anything is in it, there are leftovers"
        self.done.append("containers ended")

    def make_way(self, team=""):
        return self.former.make_way(team, lambda _: None)


@pytest.mark.parametrize(
    ("earlier", "chosen", "anew"),
    [
        # Before the charm chose, Concourse did, whatever the kernel said to it.
        ("CONCOURSE_NAME=a\n", "overlay", False),
        ("CONCOURSE_NAME=a\n", "naive", True),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=overlay\n", "overlay", False),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=overlay\n", "naive", True),
        ("CONCOURSE_BAGGAGECLAIM_DRIVER=naive\n", "naive", False),
    ],
)
def test_a_worker_begins_anew_where_its_volumes_would_be_found_empty(
    tmp_path, earlier, chosen, anew
):
    """No settings name the new driver before: they are made of what this returns."""
    past = Past(tmp_path, earlier, chosen)
    assert past.make_way() == chosen
    assert past.done == ["retired within 30 s", "containers ended"] * anew
    assert past.work.exists() is not anew


@pytest.mark.parametrize("driver", ["naive", "overlay"])
def test_the_first_worker_has_the_volumes_that_can_be(tmp_path, driver):
    past = Past(tmp_path, None, driver)
    chosen = past.make_way()
    told = worker(tmp_path, make_plan(unit()), chosen)
    assert told["CONCOURSE_BAGGAGECLAIM_DRIVER"] == driver


def test_a_worker_without_gpus_keeps_concourses_own_limits(tmp_path):
    told = worker(tmp_path, make_plan(unit()))
    assert "CONCOURSE_CONTAINERD_REQUEST_TIMEOUT" not in told
    assert "CONCOURSE_MAX_ACTIVE_TASKS" not in told


def test_a_worker_outlasts_the_wait_for_a_gpu_and_says_how_many_tasks_it_takes(tmp_path):
    told = worker(tmp_path, make_plan(gpu_unit()))
    assert told["CONCOURSE_CONTAINERD_REQUEST_TIMEOUT"] == "300s"
    assert told["CONCOURSE_MAX_ACTIVE_TASKS"] == "2"


def test_a_web_outlasts_the_longest_wait_that_a_worker_makes_of_it(tmp_path):
    options = {"enable-gpu": True, "gpu-wait-timeout": "30m"}
    made = make_plan(unit("all", options=options, tsa=Tsa()))
    clocks = {
        "web": web(tmp_path, made)["CONCOURSE_GARDEN_REQUEST_TIMEOUT"],
        "worker": worker(tmp_path, made)["CONCOURSE_CONTAINERD_REQUEST_TIMEOUT"],
    }
    seconds = {name: int(GO_DURATION.fullmatch(text).group(1)) for name, text in clocks.items()}
    assert made.gpu.wait_timeout == 1800
    assert seconds == {"web": 2100, "worker": 1860}


@pytest.mark.parametrize(("version", "queues"), [("8.3.0", True), ("8.2.5", False)])
def test_a_web_queues_tasks_in_its_scheduler_from_8_3_on(tmp_path, version, queues):
    told = web(tmp_path, make_plan(unit("web", options={"concourse-version": version})))
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
def test_a_webs_url_is_read_back_as_it_was_told(tmp_path, option, url):
    assert concourse_web.url(tmp_path / "web.env") is None
    web(tmp_path, make_plan(unit("web", options={"external-url": option})))
    assert concourse_web.url(tmp_path / "web.env") == url


def test_what_each_is_told_is_no_business_of_the_other(tmp_path):
    """Concourse's worker refuses to start with a variable of the other's container runtime."""
    made = make_plan(unit("all", options={"enable-gpu": True}, tsa=Tsa()))
    assert not [name for name in worker(tmp_path, made) if name.startswith("CONCOURSE_GARDEN_")]
    assert not [name for name in web(tmp_path, made) if name.startswith("CONCOURSE_CONTAINERD_")]


def test_what_the_operator_says_of_a_worker_reaches_it(tmp_path):
    names = ("TEAM", "CONTAINERD_MAX_CONTAINERS", "CONTAINERD_MTU", "CERTS_DIR")
    told = worker(tmp_path, make_plan(unit()))
    private_key = told["CONCOURSE_TSA_WORKER_PRIVATE_KEY"].strip('"')
    assert private_key == str(tmp_path / "worker_key")
    assert [told.get(f"CONCOURSE_{name}") for name in names[:2]] == [None, None]
    assert "CONCOURSE_CERTS_DIR" not in told
    options = {"only-team": "team-a", "worker-settings": "max-containers=500,mtu=1380"}
    options["worker-ca-certificates"] = CA
    told = worker(tmp_path, make_plan(unit(options=options)))
    *expected, folder = [told[f"CONCOURSE_{name}"].strip('"') for name in names]
    assert expected == ["team-a", "500", "1380"]
    assert CA in (pathlib.Path(folder) / "ca-certificates.crt").read_text()


def test_cas_of_the_operators_stand_beside_the_machines(tmp_path):
    machines, folder = tmp_path / "ssl.crt", tmp_path / "concourse/certs"
    machines.write_text("the machine's\n")

    def ensure(pem, had=""):
        return certificates.ensure(pem, str(had), folder, machines)

    first = pathlib.Path(ensure("ours\n"))
    assert (first / "ca-certificates.crt").read_text() == "the machine's\nours\n"
    assert ensure("ours\n") == str(first)
    # Concourse knows its copy of the folder by the path alone.
    second = pathlib.Path(ensure("others\n"))
    assert [path.name for path in folder.iterdir()] == [second.name]
    assert second != first
    # A get of the process that runs reads them until it is restarted.
    machines.unlink()
    third = pathlib.Path(ensure("others\n", second))
    assert second.exists()
    assert ensure("", third) == ""
    assert [path.name for path in folder.iterdir()] == [third.name]
    third = pathlib.Path(ensure("others\n", third))
    assert (third / "ca-certificates.crt").read_text() == "others\n"
    assert ensure("") == ""
    assert not folder.exists()
    assert not certificates.remove(folder)


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
    tmp_path, earlier, team, leaves
):
    """Web takes none whose name it knows as another team's, or everybody's."""
    past = Past(tmp_path, earlier, "overlay")
    past.make_way(team)
    # As long as builds may take.
    assert ("retired within 300 s" in past.done) is leaves
    assert past.work.exists() is bool(earlier), "its volumes stay"


@pytest.mark.parametrize(("earlier", "stays"), [(None, False), ("CONCOURSE_NAME=w\n", True)])
def test_what_another_unit_has_left_in_a_storage_goes(tmp_path, earlier, stays):
    past = Past(tmp_path, earlier, "overlay")
    past.make_way()
    assert past.done == ([] if stays else ["containers ended"])
    assert past.work.exists() is stays
    past.done.clear()
    past.make_way()
    assert past.done == [], "there is nothing left"


def test_the_log_says_why_the_worker_starts_anew():
    made = planned(make_plan(unit(options={"extra-tags": "rack-8"}))).worker
    for started, said in (
        ("", "other tags: rack-8; before: none"),
        ("concourse worker --tag=rack-7", "other tags: rack-8; before: rack-7"),
        ("concourse worker --tag=rack-8", "other settings, another release"),
    ):
        shown = {"ExecStart": started}
        before = concourse_worker.tags(lambda *_, shown=shown: shown)
        assert said in concourse_worker.what_differs(before, made.tags)


@pytest.mark.parametrize(
    ("running", "heard", "waited", "last"),
    [
        ((), True, 300, "no step runs, web has to take it off its list, which has 300 s left"),
        (("a",), True, 300, "its builds have 300 s left"),
        (("a",), False, 45, "web takes nothing of it any more, its builds have 30 s left"),
    ],
)
def test_a_worker_that_web_refuses_is_not_waited_for_in_vain(running, heard, waited, last):
    """Its application was removed: web takes its key no more, and hears of no build's end."""
    now, said = [0.0], []

    def ends(seconds):
        now[0] += seconds
        return False

    departure = Departure(ends, lambda: heard, 30, lambda: running, lambda: now[0])
    departure.wait(300, said.append)
    assert now[0] == pytest.approx(waited, abs=0.1)
    assert f"Retiring the worker: {last}" in said


def test_a_worker_that_has_ended_is_waited_for_no_longer():
    said = []
    Departure(lambda _: True, lambda: True, 30, tuple, lambda: 0.0).wait(300, said.append)
    assert len(said) == 1
