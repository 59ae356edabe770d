# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runners of Gitea by the packed charm, with the stand-ins of the server and of its runner.

tests/functional/test_runners.py runs with the real ones too. This file has what the charm does.
"""

import base64
import json
import pathlib
import secrets

import pytest

from tests import fakes
from tests.lab import outfit, walk
from tests.lab.leases import holders
from tests.lab.session import Lab, Progress
from tests.lab.site import Site
from tests.lab.test_actions import act

STANDINS = pathlib.Path(fakes.__file__).with_name("gitea")
URL = "http://127.0.0.1:3900"
TOKEN = secrets.token_hex(20)
READY = ("active", "Runners ready (GPU: 2x NVIDIA, self-test passed)")
OPTIONS = {"ci-system": "gitea", "deployment-mode": "worker", "enable-gpu": "true"}
SERVER = (
    "systemd-run --quiet --unit=gitea -E PYTHONPATH=/opt/gpu-ci/app/current/venv "
    "/srv/server-standin 3900 /srv/gitea.json /srv/token"
)
# What is there of runners on the machine; empty without them.
RUNNERS = {
    "units": "ls /etc/systemd/system{,/*.wants} | grep gpu-ci-runner",
    "running": "systemctl list-units --plain --no-legend 'gpu-ci-runner*'",
    "files": "find /opt/gpu-ci-runners /etc/gpu-ci/runners.json /run/gpu-ci-runners "
    "/var/lib/gpu-ci-runners /var/lib/private/gpu-ci-runners",
}
# A job that runs until its file is there.
WAITS = "echo begun; until [ -e /srv/go/{0} ]; do sleep 0.1; done; echo whole"
SEES = (
    "for n in /dev/nvidia[0-9]; do cat $n 2>&1 | sed 's/^/SEES /' || true; done; env; "
    "curl -s http://127.0.0.1:335/metrics || echo REFUSED $?"
)


class Forge(Site):
    """A unit with runners, and the server on its machine."""

    def __init__(self, lab):
        self.lab, self.secret = lab, ""

    def api(self, method, path, body=None):
        """What the server answers; the token is in no argument."""
        data = f"data = {json.dumps(json.dumps(body))}" if body else ""
        config = "\n".join(
            (
                f'url = "{URL}/api/v1{path}"', f"request = {method}", "silent", "fail",
                f'header = "Authorization: token {TOKEN}"', "max-time = 30", data,
            )
        )  # fmt: skip
        done = self.machine().enter("/usr/bin/curl", "-K", "-", stdin=config)
        return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout

    def push(self, script, *labels):
        """Start a job; return the name of its repository."""
        name = f"r{secrets.token_hex(3)}"
        steps = [{"run": script}]
        whole = {"on": "push", "jobs": {"build": {"runs-on": [*labels], "steps": steps}}}
        content = base64.b64encode(json.dumps(whole).encode()).decode()
        self.api("POST", "/user/repos", {"name": name})
        self.api("POST", f"/repos/root1/{name}/contents/w.yml", {"content": content})
        return name

    def job(self, name):
        return self.api("GET", f"/repos/root1/{name}/actions/jobs")["jobs"][0]

    def wait(self, ready, seconds=120):
        """Let the agents run until it is so."""
        self.lab.controller.settle(ready, seconds)
        if not ready():
            pytest.fail(self.sh("journalctl -o cat -u gpu-ci-runners | tail -30; true"))

    def begin(self, name, *labels):
        """Start a job that waits for `end`; wait until it runs."""
        repository = self.push(WAITS.format(name), *labels)
        self.wait(lambda: self.job(repository)["status"] == "in_progress")
        return repository

    def end(self, name):
        self.sh(f"mkdir -p -m 755 /srv/go; touch /srv/go/{name}")

    def result(self, repository):
        """How a job ended, and what it has written."""
        self.wait(lambda: self.job(repository)["status"] == "completed")
        job = self.job(repository)
        return job["conclusion"], self.api(
            "GET", f"/repos/root1/{repository}/actions/jobs/{job['id']}/logs"
        )

    def listed(self):
        return self.api("GET", "/admin/actions/runners")["runners"]

    def left(self):
        """What there is of runners on the machine."""
        found = {kind: self.sh(f"{script} 2>&-; true") for kind, script in RUNNERS.items()}
        return {kind: text for kind, text in found.items() if text}


@pytest.fixture(scope="module")
def site(machines_work, tmp_path_factory):
    """A machine with two GPUs, and a unit that has no option of its server yet."""
    lab = Lab(tmp_path_factory.mktemp("gitea"), Progress())
    try:
        outfit.prepare(lab.state_dir / "shared")
        lab.controller.wake()
        lab.model.deploy(walk.pack(), "worker", OPTIONS, outfit={"gpus": 2})
        lab.settle()
        site = Forge(lab)
        text = (STANDINS / "server-standin").read_text()
        site.machine().write("/srv/server-standin", text, mode=0o755)
        site.machine().write("/srv/token", TOKEN, mode=0o600)
        yield site
    finally:
        lab.controller.destroy()


@pytest.fixture(scope="module")
def ready(site):
    """The same with all options, a server that answers, and runners."""
    if not site.secret:
        set_up(site)
    return site


def set_up(site):
    secret = site.lab.model.secrets
    kind, said = site.status()
    assert (kind, said.partition(":")[0]) == (
        "blocked", "No runner-url, so no runner can register",
    )  # fmt: skip
    site.configure(runner_url=URL)
    assert site.status()[1].startswith("No runner-secret, so no runner can register: juju add-")
    site.secret = secret.add("gitea", {"api-token": TOKEN})
    site.configure(runner_secret=site.secret)
    assert "juju grant-secret" in site.status()[1]
    secret.grant("gitea", "worker")
    site.configure()
    assert site.status()[1].startswith("No program for runners: juju attach-resource worker")
    assert "systemctl" not in site.sh("systemctl is-active gpu-ci-runners; true")
    site.lab.model.attach_resource("worker", "runner", STANDINS / "runner-standin")
    site.lab.settle()
    # Nothing listens there yet.
    site.wait(lambda: "does not answer" in site.status()[1])
    assert site.status()[0] == "waiting"
    site.sh(SERVER)
    site.wait(lambda: site.status() == READY)


def test_each_missing_option_is_named_until_the_runners_are_ready(ready):
    ready.wait(lambda: len(ready.listed()) == 2)
    assert ready.status() == READY
    assert "concourse" not in ready.sh("ls /opt /etc/systemd/system")


def test_a_job_has_its_gpu_and_is_known_by_name(ready):
    repository = ready.begin("one", "self-hosted", "linux", "x64", "gpu")
    ready.wait(lambda: any(repository in one["who"] for one in holders(ready).values()))
    assert act(ready, "gpu-leases")[0]["free"] == "0 of 2"
    metrics = "curl -s http://127.0.0.1:335/metrics"
    ready.wait(lambda: 'gpuci_runners{state="busy"} 1\n' in ready.sh(metrics))
    ready.end("one")
    assert ready.result(repository)[0] == "success"
    record = f"grep -c 'of root1/{repository}, run' /var/log/gpu-ci/receipts.log; true"
    ready.wait(lambda: ready.sh(record).strip() == "1")
    said, log = ready.result(ready.push(SEES, "gpu"))
    assert said == "success"
    assert log.count("No such device or address") == 1
    assert log.count("Operation not permitted") == 1
    assert TOKEN not in log
    # Metrics name other people's jobs: root gets them, and the job an end without an answer.
    assert "gpuci_gpu_answers" in ready.sh("curl -s http://127.0.0.1:335/metrics")
    assert "REFUSED 52" in log or "REFUSED 56" in log
    homes = "find /var/lib/private/gpu-ci-runners -mindepth 1 -maxdepth 1 | wc -l"
    ready.wait(lambda: ready.sh(homes).strip() == "2")
    assert "cannot be" not in ready.sh("journalctl -o cat -u gpu-ci-runners")


def test_the_self_test_gets_the_gpus_of_idle_runners(ready):
    ready.wait(lambda: len(ready.listed()) == 2)
    results, message = act(ready, "gpu-selftest", level="isolation")
    assert message == ""
    assert results["verdict"] == "passed", results
    assert results["report"].startswith("passed: quick and isolation, "), results
    ready.wait(lambda: ready.status() == READY and len(ready.listed()) == 2)


def test_a_pause_lets_the_job_end_and_takes_no_other(ready):
    repository = ready.begin("paused", "gpu")
    results, _ = act(ready, "pause", reason="new fans")
    assert results["state"].startswith("Paused: new fans (")
    ready.wait(lambda: len(ready.listed()) == 1)
    ready.configure()
    assert "1 job left" in ready.status()[1] or repository in ready.status()[1]
    waits = ready.push("true", "gpu")
    ready.end("paused")
    assert ready.result(repository)[0] == "success"
    ready.configure()
    assert "no job left" in ready.status()[1]
    assert ready.job(waits)["status"] == "queued"
    assert ready.listed() == []
    act(ready, "resume")
    assert ready.result(waits)[0] == "success"
    ready.wait(lambda: ready.status() == READY)


def test_a_token_that_is_refused_is_blocked_and_a_new_one_recovers(ready):
    repository = ready.begin("token", "gpu")
    ready.lab.model.secrets.update("gitea", {"api-token": "0" * 40})
    ready.lab.settle()
    ready.wait(lambda: ready.status()[0] == "blocked")
    assert "juju update-secret" in ready.status()[1]
    ready.lab.model.secrets.update("gitea", {"api-token": TOKEN})
    ready.lab.settle()
    ready.wait(lambda: ready.status() == READY)
    ready.end("token")
    assert ready.result(repository)[0] == "success"


def test_no_secret_is_in_argv_the_journal_a_readable_file_or_a_job(ready):
    assert TOKEN not in ready.sh("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '")
    assert TOKEN not in ready.sh("journalctl --no-pager")
    folders = "/etc/gpu-ci /etc/systemd /run/gpu-ci* /run/systemd /var/lib/gpu-ci* /var/log/gpu-ci"
    found = ready.sh(f"grep -rlF {TOKEN[:20]} {folders} 2>&-; true")
    assert found.split() == ["/etc/gpu-ci/runners.json"]
    assert ready.sh("stat -c %a:%U /etc/gpu-ci/runners.json").strip() == "600:root"
    log = ready.lab.controller.log_path("worker/0").read_text()
    assert TOKEN not in log


def test_a_reboot_leaves_no_ghost_and_runners_come_back(ready):
    repository = ready.begin("reboot", "gpu")
    before = {one["name"] for one in ready.listed()}
    ready.machine().reboot(timeout=60)
    ready.sh(SERVER)
    ready.configure()
    ready.wait(lambda: ready.status() == READY and len(ready.listed()) == 2)
    assert not before & {one["name"] for one in ready.listed()}
    assert ready.job(repository)["status"] != "queued"
    assert ready.result(ready.push("true", "gpu"))[0] == "success"


def test_a_switch_away_ends_jobs_in_time_and_leaves_nothing(ready):
    repository = ready.begin("switch", "gpu")
    ready.end("switch")
    ready.configure(ci_system="none")
    assert ready.result(repository)[0] == "success"
    assert ready.status() == ("active", READY[1].replace("Runners ready", "Ready"))
    assert ready.left() == {}
    assert ready.listed() == []
    ready.configure(ci_system="gitea")
    ready.wait(lambda: ready.status() == READY and len(ready.listed()) == 2)


def test_removal_ends_runners_and_leaves_nothing(ready):
    ready.wait(lambda: len(ready.listed()) == 2)
    ready.lab.model.remove_unit("worker/0")
    ready.lab.settle()
    assert ready.lab.store.column("SELECT name FROM unit WHERE app = 'worker'") == []
