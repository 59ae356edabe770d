# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of Gitea Actions under a real systemd: what jobs get of the GPUs, and what others get.

The same tests pass on Gitea 1.26 and its runner 1.0.8; runners_machine says how to run them so.
"""

import json
import shlex
import time

import pytest

from tests import secret_search
from tests.functional import runners_machine, selftest_machine
from tests.functional.runners_machine import (
    ANY,
    DAEMON,
    DATA,
    GITEA,
    GPU,
    HOMES,
    LATER,
    PREFIX,
    REPORT,
    URL,
    name_on_server,
    slice_of,
)

pytestmark = selftest_machine.NEEDS

SECRET_FOLDERS = ("/etc/gpu-ci", "/run/gpu-ci", "/var/lib/gpu-ci", "/run/gpu-ci-runners")
DOOR = "/run/gpu-run.sock"
BOTH = ("gpu-count-2",)
# More than the machine has.
TOO_MANY = ("gpu-count-4",)
MARK = "left-by-a-job"
# Names on the server: no unit has the first, and another machine's begins alike.
GONE, OTHER = f"{PREFIX}-gone", f"{PREFIX}3-other"


@pytest.fixture(scope="module")
def up():
    with runners_machine.started("runners") as site:
        yield site


@pytest.fixture
def site(up):
    """The machine with an idle runner for each GPU and one without."""
    up.wait(up.is_ready)
    yield up
    up.settle()


def held(site):
    """The GPUs of the leases, as the machine's store has them."""
    return [gpu for one in site.box.leases()["holders"].values() for gpu in one["gpus"]]


def hold(site, name="go", **more):
    """A job that holds a GPU until `site.let_go(name)`; its run and its runner's unit."""
    run = site.push(one=(GPU, f"/srv/job hold {name}"), **more)
    site.wait_for(run, one="in_progress")
    return run, site.runner_of(run, "one")


def test_a_job_opens_its_own_gpu_and_no_other_and_has_no_more_rights_than_a_stranger(site):
    look = "; ".join(
        ["/srv/job look", shlex.join(["/srv/job", "folders", *SECRET_FOLDERS]), "/srv/job hold go"]
    )
    run = site.push(a=(GPU, look), b=(GPU, look))
    site.wait_for(run, a="in_progress", b="in_progress")
    # Both runners with a GPU are busy: this one is for the runner without.
    other = site.push(cpu=(ANY, f"/srv/job look; /srv/job connect {DOOR}"))
    cpu = site.result(other, "cpu")
    assert cpu["uuids"] == []
    assert cpu["nodes"] == cpu["child"] == cpu["shell"] == {"nvidia0": "EPERM", "nvidia1": "EPERM"}
    assert cpu["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "GPU-" not in json.dumps(cpu["environment"])
    assert cpu["status"] == "EACCES"
    site.let_go("go")
    seen = [site.result(run, job) for job in "ab"]
    assert sorted(one["uuids"] for one in seen) == sorted([uuid] for uuid in site.uuids)
    for one in seen:
        (uuid,) = one["uuids"]
        mine = f"nvidia{site.uuids.index(uuid)}"
        # Simulated GPUs have no driver: ENXIO says that opening is allowed.
        assert one["nodes"] == {
            node: "ENXIO" if node == mine else "EPERM" for node in ("nvidia0", "nvidia1")
        }
        assert one["nodes"] == one["child"] == one["shell"]
        told = one["environment"]
        assert (told["CUDA_VISIBLE_DEVICES"], told["GPU_COUNT"]) == (uuid, "1")
        assert [device["uuid"] for device in json.loads(told["GPU_CI_DEVICES"])] == [uuid]
        others = [name for name in site.uuids if name != uuid]
        assert not any(name in text for name in others for text in told.values())
        assert one["uid"] > 60000
        assert one["privileges"] == ["NoNewPrivs:\t1\n"]
        assert one["switch"] != 0
        assert [one[folder] for folder in SECRET_FOLDERS] == ["EACCES"] * len(SECRET_FOLDERS)


def test_no_gpu_is_held_twice_by_twenty_jobs_and_gpu_run(site):
    values = {"strategy": {"matrix": {"n": [*range(20)]}}}
    run = site.push(many=(GPU, "/srv/job claim 0.3", values))
    # As jobs do, these claim the names of their GPUs.
    loop = "for n in 1 2 3; do gpu-run -- /srv/job claim 0.3 || exit; done"
    for user in ("alice", "bob"):
        command = site.box.command(user, "sh", "-c", f"({loop}); echo ended $?")
        site.sh(
            f"systemd-run --quiet --unit=test-{user} -p StandardOutput=file:/srv/said/{user} "
            + shlex.join(command)
        )
    site.wait(lambda: not {"queued", "in_progress"} & {*site.states(run).values()}, 300)
    assert [*site.states(run).values()] == ["success"] * 20
    given = [site.told(run, f"many ({n})")["uuids"] for n in range(20)]
    assert {len(uuids) for uuids in given} == {1}
    site.wait(lambda: all("ended" in site.box.said(user) for user in ("alice", "bob")))
    assert [site.box.said(user).splitlines()[-1] for user in ("alice", "bob")] == ["ended 0"] * 2


def test_a_job_for_two_gpus_gets_both_and_one_for_too_many_waits_and_blocks_nobody(site):
    never = site.push(never=(TOO_MANY, "true"))
    run = site.push(two=(BOTH, "/srv/job claim 0"))
    assert sorted(site.result(run, "two")["uuids"]) == sorted(site.uuids)
    after = site.push(one=(GPU, "/srv/job claim 0"))
    assert len(site.result(after, "one")["uuids"]) == 1
    assert site.states(never) == {"never": "queued"}
    site.wait(lambda: site.report()["waiting"] == 1)


def test_gpu_run_gets_the_gpu_of_an_idle_runner_soon_and_a_busy_one_keeps_its_own(site):
    run, unit = hold(site)
    (mine,) = site.runners()[unit]["gpus"]
    (other,) = {*site.uuids} - {mine}
    site.wait(lambda: site.runners("busy"))
    began = time.monotonic()
    site.box.run("true", check=True)
    took = time.monotonic() - began
    print(f"gpu-run had its GPU after {took:.1f} s")
    assert took < 30
    refused = site.box.run("--gpu", mine, "--timeout", "3s", "true")
    assert refused.returncode == 124
    assert 'job "one"' in refused.stderr
    seen = site.box.run("--gpu", other, "/srv/job", "look")
    assert json.loads(seen.stdout.removeprefix("TOLD "))["uuids"] == [other]
    site.let_go("go")
    assert site.result(run, "one")["uuids"] == [mine]


def test_nothing_of_a_job_is_left_for_the_next_one(site):
    places = "~ . /tmp /var/tmp /dev/shm"
    # The process keeps the GPUs' names, so that no other job could claim them.
    # Folders that deep are more than Python's own functions remove.
    deep = "import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]"
    leave = f"""for one in {places}; do touch $one/{MARK}; done
        cd; python3 -c "{deep}"
        setsid /srv/job hold {MARK} >/dev/null 2>&1 &
        sleep 1"""
    first = site.push(one=(BOTH, leave))
    site.wait_for(first, one="in_progress")
    site.wait(site.holders)
    second = site.push(one=(BOTH, f"/srv/job claim 0; /srv/job folders {places}"))
    for run in (first, second):
        seen = site.result(run, "one")
    assert len(seen["uuids"]) == 2
    assert MARK not in json.dumps(seen)
    site.wait(site.is_ready)
    assert site.holders() == []
    assert site.see(f"find /tmp /var/tmp /dev/shm /run /var/lib -name {MARK}") == ""
    homes = {f"gpu-ci-runner-{home}.service" for home in site.see(f"ls {HOMES}").split()}
    assert homes == site.units()


def test_what_a_killed_runner_had_is_free_and_the_server_forgets_it(site):
    run, unit = hold(site)
    name = name_on_server(unit)
    assert name in site.listed()
    site.sh(f"kill -9 {site.main_pid(unit)}")
    took = site.wait(lambda: name not in site.listed())
    print(f"the server had forgotten the runner after {took:.1f} s")
    print(f"it says of the job: {site.states(run)}")
    assert site.holders() == []
    assert unit not in site.units()
    assert slice_of(unit) not in site.box.leases()["holders"]
    after = site.push(two=(BOTH, "/srv/job claim 0"))
    assert sorted(site.result(after, "two")["uuids"]) == sorted(site.uuids)


def test_jobs_outlive_the_daemon_which_finds_their_runners_again(site):
    (first, gone), (second, stays) = hold(site, "first"), hold(site, "second")
    site.wait(lambda: len(site.runners("busy")) == 2)
    before = site.runners("busy")[stays]
    site.sh(f"systemctl kill -s KILL {DAEMON}")
    site.let_go("first")
    site.result(first, "one")
    site.wait(lambda: gone not in site.units())
    site.sh(f"rm {REPORT}; systemctl start {DAEMON}")
    site.wait(lambda: site.runners("busy").get(stays, {}).get("job") == before["job"])
    assert site.runners()[stays]["gpus"] == before["gpus"]
    site.wait(lambda: len(site.runners()) == 3)
    assert sorted(held(site)) == sorted(site.uuids)
    site.let_go("second")
    site.result(second, "one")
    # So is the server's list: nothing was registered twice.
    site.wait(site.is_ready)


def test_a_job_outlives_an_outage_of_the_server(site):
    run, _ = hold(site)
    site.wait(lambda: site.runners("busy"))
    site.sh(f"systemctl stop {GITEA}")
    site.wait(lambda: site.report()["fault"] == "unreachable")
    assert URL in site.report()["text"]
    assert site.holders()
    site.sh(f"systemctl start {GITEA}")
    site.wait(lambda: not site.report()["fault"])
    site.let_go("go")
    site.result(run, "one")
    site.wait(site.is_ready)


def test_bad_settings_are_reported_and_good_ones_are_enough_to_recover(site):
    before = site.units()
    site.configure(credential={"api-token": "0" * 40})
    site.wait(lambda: site.report()["fault"] == "credential")
    site.configure(scope="nobody")
    site.wait(lambda: site.report()["fault"] == "not-found")
    site.configure()
    site.wait(lambda: site.report()["runners"] and not site.report()["fault"])
    site.wait(site.is_ready)
    assert site.units() == before


@pytest.fixture(scope="module")
def parted(up):
    """What there is after the daemon has looked for runners that only one side knows.

    They are there all at once, since the daemon looks twice.
    """
    up.wait(up.is_ready)
    token = up.api("POST", "/admin/actions/runners/registration-token")["token"]
    path = "/api/actions/runner.v1.RunnerService/Register"
    for name in (GONE, OTHER):
        wanted = {"name": name, "token": token, "labels": ["x"], "ephemeral": True}
        assert up.call("POST", path, wanted)[0] == 200
    run, cancelled = hold(up)
    # The report may not know yet that the other one has a job.
    (forgotten,) = (
        name for name, one in up.runners().items() if one["gpus"] and name != cancelled
    )
    number = up.listed()[name_on_server(forgotten)]["id"]
    up.api("DELETE", f"/admin/actions/runners/{number}")
    # With that the server forgets its runner, too.
    up.cancel(run)
    for _ in range(2):
        # The daemon looks at once when a runner has ended.
        up.result(up.push(one=(ANY, "true")), "one")
    up.wait(lambda: forgotten not in up.units(), LATER)
    up.wait(lambda: cancelled not in up.units(), LATER)
    up.wait(lambda: up.listed().keys() - {OTHER} == {*map(name_on_server, up.units())})
    found = {"listed": up.listed(), "units": up.units(), "holders": up.holders()}
    up.api("DELETE", f"/admin/actions/runners/{found['listed'][OTHER]['id']}")
    up.settle()
    return {**found, "cancelled": cancelled, "forgotten": forgotten}


def test_the_server_loses_runners_that_are_gone_and_keeps_those_of_others(parted):
    assert GONE not in parted["listed"]
    assert OTHER in parted["listed"]


def test_an_idle_runner_that_the_server_has_forgotten_is_replaced(parted):
    assert parted["forgotten"] not in parted["units"]
    assert len(parted["units"]) >= 2


def test_a_job_that_is_cancelled_while_it_runs_ends(parted):
    assert parted["cancelled"] not in parted["units"]
    assert parted["holders"] == []


def test_a_job_that_is_cancelled_while_it_waits_leaves_nothing(site):
    alice = site.box.begin("alice", "--gpus", "all", "sleep", "1000")
    unit = site.box.wait_runs(alice, "alice: sleep")
    run = site.push(one=(GPU, "true"))
    # The job has its place in the machine's own queue.
    site.wait(lambda: site.box.leases()["waiters"])
    site.cancel(run)
    assert site.states(run) == {"one": "cancelled"}
    site.wait(lambda: not site.box.leases()["waiters"] and not site.report()["waiting"])
    site.sh(f"systemctl stop {unit}")
    site.wait(site.is_ready)


def test_a_gpu_that_fails_gets_no_runner_and_the_report_says_why(site):
    good, bad = site.uuids
    unit = next(name for name, one in site.runners().items() if one["gpus"] == [bad])
    site.box.fakegpu("lose", "1", "--nvml-only")
    try:
        site.sh(f"systemctl stop {unit}")
        site.wait(lambda: bad in site.report()["text"])
        assert "cannot use its GPUs" in site.report()["text"]
        run = site.push(one=(GPU, "/srv/job claim 0"))
        assert site.result(run, "one")["uuids"] == [good]
        site.wait(lambda: [good] in [one["gpus"] for one in site.runners("idle").values()])
        # It has this GPU for a moment whenever it tries again.
        site.wait(lambda: bad not in held(site))
    finally:
        site.box.fakegpu("restore", "1")
        # It would try this GPU again a minute later.
        site.configure()
    site.wait(site.is_ready)


HEALTH = """
import pathlib
from gpu_agent import install as app
app.HOME, app.CURRENT = pathlib.Path('/srv'), 'charm'
from gpu_agent.gpu.vendors import detect
from gpu_agent.health import service, settings
from gpu_agent.model.card import Card
cards = tuple(
    Card(one.uuid, one.index, one.pci_address, one.model, one.devices)
    for one in detect.detect().gpus
)
given = dict(poll_seconds=2.0, metrics_port=335, ci_figures='/run/gpu-ci-runners/figures.json')
service.install(settings.Settings('', '/srv/charm/stamp', cards=cards, **given))
"""


@pytest.fixture(scope="module")
def health(up):
    """The GPU health service, once it has polled."""
    up.box.host.run(HEALTH)
    up.wait(lambda: 'gpuci_runners{state="idle"}' in metrics(up))
    yield
    up.sh("systemctl disable --now gpu-ci-health; rm /etc/systemd/system/gpu-ci-health.service")


def metrics(site):
    """The samples of the GPU health service, by name and labels."""
    lines = site.see("curl -s http://127.0.0.1:335/metrics").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.mark.usefixtures("health")
def test_the_metrics_have_the_runners_and_the_jobs_that_wait(site):
    never = site.push(never=(TOO_MANY, "true"))
    hold(site)
    wanted = {
        'gpuci_runners{state="busy"}': "1",
        'gpuci_runners{state="idle"}': "2",
        "gpuci_runner_fault": "0",
        "gpuci_ci_jobs_waiting": "1",
    }
    site.wait(lambda: wanted.items() <= metrics(site).items())
    # Gitea has no limit of requests.
    assert not [name for name in metrics(site) if "requests" in name]
    site.let_go("go")
    site.cancel(never)


@pytest.mark.usefixtures("health")
def test_a_fault_of_a_jobs_gpu_is_in_its_log_and_in_no_other(site):
    run, unit = hold(site)
    other = site.push(one=(GPU, "/srv/job hold go"))
    site.wait_for(other, one="in_progress")
    # Its lease says so a moment later.
    site.wait(lambda: len(site.runners("busy")) == 2)
    (mine,) = site.runners()[unit]["gpus"]
    number = site.uuids.index(mine)
    try:
        site.box.fakegpu("xid", str(number), "31", "--only", "nvml")
        line = f"[gpu-ci] GPU {number}: Xid 31: this job accessed GPU memory"
        site.wait(lambda: any(one.startswith(line) for one in site.log(run, "one")))
    finally:
        site.box.fakegpu("xid", "clear")
    site.let_go("go")
    site.result(run, "one")
    site.result(other, "one")
    assert sum("[gpu-ci]" in one for one in site.log(run, "one")) == 1
    assert "[gpu-ci]" not in "".join(site.log(other, "one"))


def test_no_secret_is_where_others_can_read_it(site):
    run, _ = hold(site)
    folders = "/run/credentials/gpu-ci-runner-*.service"
    files = site.see(f"for one in {folders}; do cat $one/runner; echo; done")
    own = [json.loads(text)["token"] for text in files.splitlines() if text]
    assert len(own) == 3
    registration = site.api("POST", "/admin/actions/runners/registration-token")["token"]
    secrets = [site.token, registration, *own]
    found = secret_search.leaks(
        lambda script, text: site.machine.enter("/bin/sh", "-c", script, stdin=text).stdout,
        secrets,
    )
    assert [line for line in found if DATA not in line] == []
    site.let_go("go")
    site.result(run, "one")
