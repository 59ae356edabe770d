# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit with runners of a CI service: options, plan, status, and whom a drain waits for."""

import dataclasses
import json
import os
import pathlib
import subprocess
import types

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ci import systems
from ci.runners import daemon_unit, http, plan, program, release, settings
from ci.runners.daemon_unit import Report
from ci.runners.github import Release
from ci.runners.jobs import Jobs
from ci.runners.jobs import main as jobs_main
from ci.runners.labels import Facts
from ci.runners.options import Download
from ci.runners.plan import Found
from ci.runners.runners import GITEA as GITEA_RUNNERS
from ci.runners.runners import GITHUB as GITHUB_RUNNERS
from ci.runners.runners import Outside, Runners, gitea_runners
from ci.runners.service import Fault
from ci.runners.settings import Limits, Settings
from ci.system import Place, Remains
from gpu_agent.model.keep import Keep
from lifecycle.drain import Drainer
from lifecycle.records import Records
from machine import download
from options.part import Part
from plan import plan as unit_plan
from plan import status
from plan.draining import Pause, Rest
from plan.state import Failure, UnitState
from relations import juju
from tests.unit.situations import GPUS, MACHINE, READY, parse, refused

URL = "https://gitea.example.com"
SECRET = {"api-token": "t0k3n"}
GITEA = {
    "ci_system": "gitea", "runner_url": URL, "runner_secret": SECRET, "enable_gpu": True,
}  # fmt: skip
HERE = Found(program="/opt/gpu-ci-runners/ab/runner", runs=True, model="m-1", dispatch="/d")
NOWHERE = Outside(is_here=lambda _: False)
CHARM = types.SimpleNamespace(model=None)
CI = Runners(GITEA_RUNNERS, CHARM, print, Records.here(), NOWHERE)
HUB = Runners(GITHUB_RUNNERS, CHARM, print, Records.here(), NOWHERE)


def unit(options=(), rests=False, **values):
    given = {"options": parse(**GITEA | dict(options)), "inventory": READY, "ci": HERE}
    found = UnitState(unit="worker/0", machine=MACHINE, rests=rests, **given)
    return dataclasses.replace(found, **values)


def with_options(options):
    return dataclasses.replace(unit(), options=options)


def wanted(found, ci=CI):
    return unit_plan.make(found, ci).ci.own


def said(found, running=None, ci=CI):
    made, running = unit_plan.make(found, ci), running or status.Running()
    added = ci.status(found, made, rests=running.rest is not None)
    return [(line.level.value, line.text) for line in status.lines(found, made, running, added)]


def test_runners_get_what_the_options_and_the_gpus_say():
    found = wanted(unit({"runner_scope": "acme", "extra_tags": "rack-7", "runners": 5}))
    assert found == Settings(
        service="gitea", url=URL, scope="acme", credential=SECRET,
        prefix=found.prefix, program=HERE.program, most=5, per_runner=1, labels=("rack-7",),
        gpus={gpu.uuid: Facts("nvidia", "a100-sxm4-80gb", 80) for gpu in GPUS},
        cuda=READY.cuda, driver=READY.driver, limits=Limits(tasks=16384), dispatch="/d",
        unit="worker/0",
    )  # fmt: skip
    assert settings.parse(settings.as_text(found)) == found


@pytest.mark.parametrize(
    ("options", "most", "each"),
    [
        ({}, 2, 1),
        ({"gpus_per_task": 2}, 1, 2),
        ({"gpus_per_task": 0}, 2, 0),
        ({"runners": 7}, 7, 1),
        ({"enable_gpu": False}, 1, 0),
    ],
)
def test_there_are_as_many_runners_as_the_gpus_suffice_for(options, most, each):
    found = wanted(
        unit(options, **({} if options.get("enable_gpu", True) else {"inventory": None}))
    )
    assert (found.most, found.per_runner) == (most, each)


def test_units_of_two_models_have_runners_with_other_names():
    first = wanted(unit())
    other = wanted(unit(ci=dataclasses.replace(HERE, model="m-2")))
    assert first.prefix.startswith("worker-0-")
    assert first.prefix != other.prefix
    assert first.prefix == wanted(unit()).prefix


def test_a_unit_that_rests_tells_the_daemon_so():
    assert wanted(unit(rests=True)).rests
    running = status.Running(rest=Rest(Pause("new fans"), None, 0.0, builds=("a",), job="job"))
    assert said(unit(rests=True), running) == [("maintenance", "Paused: new fans (1 job left)")]


@pytest.mark.parametrize("engines", ["docker=default", "podman,docker=default"])
def test_trusted_jobs_have_containers_of_the_default_engine_and_status_says_so(engines):
    found = unit({"runner_containers": "trusted", "container_engines": engines})
    assert wanted(found).engine == "docker"
    assert wanted(unit({"container_engines": engines})).engine == ""
    ((level, text),) = said(found)
    assert level == "active"
    assert text.endswith("; jobs have containers, and so can become root)")


def test_a_machine_without_runc_says_that_its_gpus_are_not_tested():
    without = dataclasses.replace(HERE, has_runc=False)
    ((level, text),) = said(unit(ci=without))
    assert level == "active"
    assert "no self-test, as this machine has no runc: sudo apt-get install runc" in text
    ((_, text),) = said(unit({"enable_gpu": False}, ci=without, inventory=None))
    assert "runc" not in text


@pytest.mark.parametrize("engines", ["", "docker"])
def test_trusted_jobs_need_an_engine_whose_default_runtime_is_ours(engines):
    found = unit({"runner_containers": "trusted", "container_engines": engines})
    assert wanted(found) is None
    ((level, text),) = said(found)
    assert level == "blocked"
    assert "juju config worker container-engines=docker=default" in text


@pytest.mark.parametrize(
    ("options", "lacks", "remedy"),
    [
        ({"runner_url": ""}, "runner-url", "juju config worker runner-url="),
        ({"runner_secret": {}}, "runner-secret", "juju grant-secret <secret> worker"),
    ],
)
def test_what_is_missing_is_named_with_the_command(options, lacks, remedy):
    found = unit(options)
    assert wanted(found) is None
    ((level, text),) = said(found)
    assert level == "blocked"
    assert f"No {lacks}, so no runner can register" in text
    assert remedy in text


def test_the_program_is_missing():
    ((level, text),) = said(unit(ci=dataclasses.replace(HERE, program="")))
    assert level == "blocked"
    assert "juju attach-resource worker runner=" in text


def test_runners_stay_as_they_are_if_their_options_or_gpus_cannot_be_used():
    assert wanted(unit({"runner_url": "gitea"})) is Keep.AS_IS
    assert wanted(unit({"gpu_device_ids": "7"})) is Keep.AS_IS
    assert wanted(unit(failures=(Failure(Part.RELEASE, "no space"),))) is Keep.AS_IS


@pytest.mark.parametrize(
    ("fault", "level", "words"),
    [
        (Fault.CREDENTIAL, "blocked", "juju update-secret"),
        (Fault.FORBIDDEN, "blocked", "may not manage runners of acme"),
        (Fault.CLOCK, "blocked", "timedatectl"),
        (Fault.NOT_FOUND, "blocked", "has no acme"),
        (Fault.STRANGE, "blocked", "does not answer as Gitea: it says"),
        (Fault.UNREACHABLE, "waiting", "it says; running jobs go on"),
        (Fault.BUSY, "waiting", "it says; running jobs go on"),
    ],
)
def test_a_fault_of_the_service_is_said_with_its_remedy(fault, level, words):
    seen = dataclasses.replace(HERE, report=Report(fault.value, "it says"))
    ((found, text),) = said(unit({"runner_scope": "acme"}, ci=seen))
    assert found == level
    assert words in text


def test_each_fault_has_a_line():
    for fault in Fault:
        assert said(unit(ci=dataclasses.replace(HERE, report=Report(fault.value, "it says"))))


def test_a_gpu_that_no_runner_can_use_and_a_daemon_that_is_down_are_said():
    seen = dataclasses.replace(HERE, report=Report(text="a runner cannot use its GPUs: x"))
    assert said(unit(ci=seen))[0] == (
        "waiting", "a runner cannot use its GPUs: x: see journalctl -u gpu-ci-runners",
    )  # fmt: skip
    assert said(unit(ci=dataclasses.replace(HERE, runs=False)))[0][0] == "waiting"
    assert said(unit()) == [("active", "Runners ready (GPU: 2x NVIDIA)")]


GITHUB = {**GITEA, "ci_system": "github", "runner_url": "https://github.com"}


def test_github_needs_a_scope_and_a_group_is_an_organisations():
    ((_, text),) = said(with_options(parse(**GITHUB)), ci=HUB)
    assert text.startswith("No runner-scope, so no runner can register: juju config worker")
    options = parse(**GITHUB, runner_scope="acme/one", runner_group="gpus")
    ((_, text),) = said(with_options(options), ci=HUB)
    assert text.startswith("runner-group is set, and runner-scope is a repository")
    options = parse(**GITHUB, runner_scope="acme", runner_group="gpus", extra_tags="Rack-7")
    found = wanted(with_options(options), HUB)
    assert (found.service, found.group, found.labels) == ("github", "gpus", ("rack-7",))


def test_an_app_has_its_key_in_the_secret_and_gitea_has_none():
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    app = {"app-id": "Iv1", "installation-id": "7", "private-key": key.decode()}
    options = parse(**GITHUB | {"runner_secret": app}, runner_scope="acme")
    assert wanted(with_options(options), HUB).credential["private-key"] == key.decode().strip()
    ((_, text),) = said(unit({"runner_secret": app}))
    assert text.startswith("No runner-secret, so no runner can register")
    broken = {**app, "private-key": "-----BEGIN x"}
    text = refused(**GITHUB | {"runner_secret": broken})
    assert "no RSA key in PEM" in text
    assert "BEGIN" not in text


def test_an_archive_is_unpacked_and_its_script_is_the_program(tmp_path):
    folder = tmp_path / "release"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/Runner.Listener").write_text("#!/bin/sh\necho 2.336.0\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    for path in ("bin/Runner.Listener", "run.sh"):
        (folder / path).chmod(0o755)
    archive, home = tmp_path / "runner.tar.gz", tmp_path / "home"
    subprocess.run(["tar", "-czf", archive, "-C", folder, "."], check=True, timeout=30)
    assert program.ensure("github", str(archive), Download(), print, home)
    assert program.installed("github", home).endswith("/run.sh")
    assert not program.installed("gitea", home)
    program.ensure("gitea", "/bin/true", Download(), print, home)
    assert program.remove("github", home)
    assert program.installed("gitea", home)
    assert program.remove("gitea", home)
    assert not home.exists()


def test_two_services_do_not_take_each_others_daemon_for_theirs(kept):
    (kept / "runners.json").write_text(settings.as_text(wanted(unit())))
    assert daemon_unit.is_here("gitea")
    assert daemon_unit.is_here()
    assert not daemon_unit.is_here("github")


def test_gitea_names_no_release_and_github_only_one_with_a_checksum(monkeypatch):
    own = parse(**GITEA).ci
    assert release.wanted("gitea", own) == Download()
    own = parse(**GITHUB, runner_scope="acme").ci
    assert release.wanted("github", dataclasses.replace(own, credential={})) == Download()
    found = Release("https://dl.example.com/r.tar.gz", "2.336.0", "ab" * 32)
    monkeypatch.setattr(http, "talk", lambda *_: found)
    assert release.wanted("github", own) == Download(found.url, found.sha256)
    monkeypatch.setattr(http, "talk", lambda *_: dataclasses.replace(found, sha256=None))
    with pytest.raises(release.ReleaseError, match="runner-download="):
        release.wanted("github", own)


@pytest.mark.parametrize("mode", ["web", "all"])
def test_runners_have_no_web(mode):
    text = refused(ci_system="gitea", deployment_mode=mode)
    assert text == f"deployment-mode '{mode}' is not for ci-system=gitea: use worker"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runner_secret": {"token": "x"}}, "has no field api-token"),
        ({"runner_secret": {"api-token": "a b"}}, "has an unusable api-token"),
        ({"runner_secret": {"api-token": "a\nb"}}, "has an unusable api-token"),
        ({"runner_scope": "a/b/c"}, "is not a scope"),
        ({"runner_scope": "../x"}, "is not a scope"),
        ({"runner_limits": "memory=1M"}, "is not a size of at least 256M"),
        ({"runner_limits": "tasks=1"}, "is out of range"),
        ({"runner_limits": "cpu=1"}, "is not a known setting"),
        ({"runner_download": "https://x/runner"}, "has no checksum"),
        ({"runner_download": f"https://x/runner@sha256:{'0' * 63}"}, "has no checksum"),
        ({"runner_download": f"ftp://x/runner@sha256:{'0' * 64}"}, "is not a URL"),
        ({"runner_url": "https://a:b@gitea"}, "is not a URL"),
    ],
)
def test_a_bad_option_is_named_with_its_remedy_and_without_a_secret(options, words):
    text = refused(**GITEA | options)
    assert words in text
    assert "a b" not in text.replace("is not a", "")


def test_limits_and_download_are_read():
    own = parse(
        **GITEA,
        runner_limits="memory=64G, disk=1T",
        runner_download=f"{URL}/r@sha256:{'AB' * 32}",
    ).ci
    assert own.limits == Limits(memory=65536, disk=1 << 20)
    assert own.download == Download(f"{URL}/r", "ab" * 32)


def test_options_of_runners_have_no_secret_in_their_text():
    found = unit()
    assert "t0k3n" not in repr(found)
    assert "t0k3n" not in repr(wanted(found))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"version": 2}', '{"version": 1}', "x" * 9]
)
def test_damaged_settings_are_refused_without_their_content(text):
    with pytest.raises(ValueError, match="no settings of runners") as caught:
        settings.parse(text)
    assert "xxx" not in str(caught.value)


def test_a_report_that_is_damaged_says_nothing(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    monkeypatch.setattr(settings, "REPORT", path)
    assert daemon_unit.report() == Report()
    for text in ("", "{", "[]", '{"runners": 1}', '{"fault": "", "text": "", "runners": [1]}'):
        path.write_text(text)
        assert daemon_unit.report() == Report()
    path.write_text(
        '{"fault": "busy", "text": "t", "runners": [{"unit": "u", "job": null}, {"unit": "v", '
        '"job": {"repository": "o/r", "name": "build", "run": "7"}}]}'
    )
    assert daemon_unit.report() == Report("busy", "t", (("v", ("o", "r", "build", "7")),))


def test_the_room_is_one_line_of_the_registry():
    room = systems.BY_NAME["gitea"]
    assert room.make is gitea_runners
    assert not room.checks


def test_nothing_is_asked_of_systemd_where_no_runner_is():
    asked = []
    outside = Outside(
        is_here=lambda _: False,
        current_program=lambda _: "",
        retire=lambda *_: asked.append("retire"),
        remove=lambda: asked.append("remove"),
    )
    one = Runners(GITEA_RUNNERS, CHARM, print, Records.here(), outside)
    one.retire(5, print)
    for remove in one.removals[Remains.SERVICES]:
        remove()
    assert not asked
    assert not one.is_here()


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [({}, False), ({"scope": "acme"}, True), ({"url": "https://x"}, True), ({"most": 9}, False)],
)
def test_a_server_or_scope_that_is_left_forgets_its_idle_runners_first(changes, leaves):
    done = []
    before = wanted(unit())
    outside = Outside(
        is_here=lambda _: True,
        current=lambda: before,
        leave=lambda: done.append("leave"),
        install=lambda _: done.append("install") or True,
    )
    one = Runners(GITEA_RUNNERS, CHARM, print, Records.here(), outside)
    one._install(dataclasses.replace(before, **changes))
    assert done == (["leave"] if leaves else []) + ["install"]


class Shown:
    """A unit whose log is given."""

    def __init__(self, name, log):
        self.unit, self._log = f"gpu-ci-runner-{name}.service", log

    def log(self):
        return self._log


class Two:
    """One runner has a job, the other has none."""

    def names(self):
        return ("a", "b")

    def unit(self, name):
        return Shown(name, "task 3 repo is o/r" if name == "b" else "waiting")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The daemon's settings are in a folder of the test."""
    monkeypatch.setattr(settings, "PATH", tmp_path / "runners.json")
    monkeypatch.setattr(settings, "REPORT", tmp_path / "report.json")
    return tmp_path


def test_a_drain_waits_for_the_runners_that_have_a_job(kept):
    (kept / "runners.json").write_text(settings.as_text(wanted(unit())))
    (kept / "report.json").write_text(
        '{"fault": "", "text": "", "runners": [{"unit": "gpu-ci-runner-b.service", '
        '"job": {"repository": "o/r", "name": "build", "run": "7"}}]}'
    )
    jobs = Jobs(Two())
    assert jobs.running() == ("gpu-ci-runner-b.service",)
    assert jobs.builds(jobs.running()) == {"gpu-ci-runner-b.service": "o/r build #7"}
    assert jobs.is_connected()
    assert Drainer(jobs, Records.here()).has_jobs()


def test_the_agent_learns_whose_job_the_holder_of_a_lease_has(kept, capsys):
    (kept / "report.json").write_text(
        '{"fault": "", "text": "", "runners": [{"unit": "gpu-ci-runner-b.service", '
        '"job": {"repository": "o/r", "name": "build", "run": "7"}}]}'
    )
    assert jobs_main(["gpucirunner-b.slice", "gpucirunner-a.slice", "4f0c"]) == 0
    assert json.loads(capsys.readouterr().out) == {"gpucirunner-b.slice": ["o", "r", "build", "7"]}


def test_without_settings_each_runner_counts_as_busy(kept):
    assert len(Jobs(Two()).running()) == 2
    assert kept.exists()


def test_a_service_of_a_newer_revision_is_an_error_and_not_the_absence_of_jobs(kept):
    newer = dataclasses.replace(wanted(unit()), service="forgejo")
    (kept / "runners.json").write_text(settings.as_text(newer))
    with pytest.raises(OSError, match="no credential for the service 'forgejo'"):
        Jobs(Two()).running()


def test_a_resource_takes_precedence_and_the_program_must_start_here(tmp_path):
    given = pathlib.Path("/bin/true")
    home = tmp_path / "home"
    assert program.ensure(
        "gitea", str(given), Download("https://nowhere.invalid", "0" * 64), print, home
    )
    first = program.installed("gitea", home)
    assert pathlib.Path(first).read_bytes() == given.read_bytes()
    assert not program.ensure("gitea", str(given), Download(), print, home)
    assert program.ensure("gitea", "/bin/cat", Download(), print, home)
    assert program.installed("gitea", home) != first
    assert not pathlib.Path(first).exists()


def test_what_is_no_program_is_refused_and_the_old_one_stays(tmp_path):
    home = tmp_path / "home"
    program.ensure("gitea", "/bin/true", Download(), print, home)
    before = program.installed("gitea", home)
    text = tmp_path / "runner.xz"
    text.write_bytes(b"\xfd7zXZ")
    with pytest.raises(program.ProgramError, match="not an"):
        program.ensure("gitea", str(text), Download(), print, home)
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(program.ProgramError, match="does not start on this machine"):
        program.ensure("gitea", str(broken), Download(), print, home)
    assert program.installed("gitea", home) == before
    assert sorted(one.name for one in (home / "gitea").iterdir()) == sorted(
        ["current", pathlib.Path(before).parent.name]
    )


def test_without_a_resource_and_a_url_nothing_is_changed(tmp_path):
    assert program.ensure("gitea", "", Download(), print, tmp_path / "home") is False
    assert not program.installed("gitea", tmp_path / "home")
    assert plan.found(unit()) is HERE


DAY = 86400
BUILT = 1_780_000_000


def packed(folder, name, built):
    """An archive as GitHub's, whose program was built then; its path."""
    (folder / name / "bin").mkdir(parents=True)
    for path in ("bin/Runner.Listener", "run.sh"):
        (folder / name / path).write_text(f"#!/bin/sh\necho {name}\n")
        (folder / name / path).chmod(0o755)
    os.utime(folder / name / "bin/Runner.Listener", (built, built))
    archive = folder / f"{name}.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", folder / name, "."], check=True, timeout=30)
    return archive


def test_the_age_of_a_program_is_that_of_its_release_and_a_newer_one_resets_it(tmp_path):
    home = tmp_path / "home"

    def age(now):
        return program.age("github", home, lambda: now)

    assert age(BUILT) is None
    program.ensure("github", str(packed(tmp_path, "old", BUILT)), Download(), print, home)
    assert age(BUILT + 20 * DAY - 1) == 19
    assert age(BUILT + 20 * DAY) == 20
    # A clock that is behind tells nothing.
    assert age(BUILT - 1) is None
    assert age(0) is None
    newer = packed(tmp_path, "new", BUILT + 15 * DAY)
    program.ensure("github", str(newer), Download(), print, home)
    assert age(BUILT + 20 * DAY) == 5
    assert program.is_from("github", Download("", download.sha256_of(newer)), home)
    assert not program.is_from("github", Download("", "0" * 64), home)
    assert not program.is_from("github", Download(), home)


@pytest.mark.parametrize("built", [0, 315532800, 9_000_000_000])
def test_an_archive_with_an_impossible_time_is_as_old_as_its_installation(tmp_path, built):
    home = tmp_path / "home"
    program.ensure("github", str(packed(tmp_path, "odd", built)), Download(), print, home)
    current, installed = home / "github/current", BUILT + DAY
    os.utime(current, (installed, installed), follow_symlinks=False)
    assert program.age("github", home, lambda: installed + 3 * DAY) == 3
    assert program.age("github", home, lambda: installed - DAY) is None


def test_a_single_file_has_no_age(tmp_path):
    program.ensure("gitea", "/bin/true", Download(), print, tmp_path)
    assert program.age("gitea", tmp_path) is None


OLD = ": juju attach-resource worker runner=<file of the current release>)"


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (None, ""),
        (-1, ""),
        (19, ""),
        (20, "is 20 days old; GitHub gives no jobs to one that misses a release for 30 days"),
        (30, "is 30 days old; GitHub gives no jobs to one that misses a release for 30 days"),
        (31, "is 31 days old, so GitHub may give it no jobs any more"),
    ],
)
def test_a_resource_of_github_warns_from_day_20_and_the_unit_stays_active(
    monkeypatch, days, words
):
    ((level, text),) = said_of_program(monkeypatch, days=days)
    assert level == "active"
    assert text.endswith(f"; the runner's program {words}{OLD}") == bool(words)
    assert ("program" in text) == bool(words)


def test_a_download_that_the_option_names_warns_too(monkeypatch):
    named = {"runner_download": f"{URL}/r@sha256:{'ab' * 32}"}
    ((_, text),) = said_of_program(monkeypatch, named, given="", days=25)
    assert text.endswith(": juju config worker runner-download= lets the charm follow GitHub)")


def test_no_program_is_too_old_that_github_wants_or_that_the_charm_replaces(monkeypatch):
    wanted_one = Download(URL, "ab" * 32)
    for values in (
        {"wanted_now": wanted_one, "has": wanted_one},
        {"given": "", "wanted_now": wanted_one},
        {"kind": GITEA_RUNNERS},
    ):
        ((_, text),) = said_of_program(monkeypatch, days=99, **values)
        assert "program" not in text, values


def test_the_age_alone_tells_if_github_does_not_say_what_it_wants(monkeypatch):
    ((_, text),) = said_of_program(monkeypatch, days=31, wanted_now=None)
    assert "may give it no jobs any more" in text


NOTHING = Download()


def said_of_program(
    monkeypatch,
    options=(),
    *,
    given="/r",
    days,
    wanted_now=NOTHING,
    has=None,
    kind=GITHUB_RUNNERS,
):
    """Status after the step that has the program, given as resource or by the options.

    `wanted_now` is what GitHub wants now; None: it does not answer. `has` is what is here.
    """

    def wants(*_):
        if wanted_now is None:
            raise release.ReleaseError("no answer")
        return wanted_now

    outside = Outside(
        is_here=lambda _: False,
        current_program=lambda _: HERE.program,
        program_age=lambda _: days,
        has_release=lambda _, one: bool(has) and one == has,
        have_program=lambda *_: False,
        wanted_program=wants,
    )
    monkeypatch.setattr(juju, "resource", lambda *_: given)
    one = Runners(kind, CHARM, print, Records.here(), outside)
    base = GITHUB if kind is GITHUB_RUNNERS else GITEA
    state = with_options(parse(**base, runner_scope="acme", **dict(options)))
    (step,) = one.steps[Place.RELEASE]
    return said(step(state, None), ci=one)
