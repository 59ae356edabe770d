# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A worker that hangs, one that keeps failing, and how closed services are, by real systemd."""

import json
import re
import shutil
import subprocess

import pytest

from ci.concourse import service
from machine import templates
from tests.functional import selftest_machine
from tests.functional.lease_site import until
from tests.unit.situations import ROOT

# It answers until it is told to hang; its child stands for the containers of builds.
WORKER = """
import http.server, pathlib, subprocess
child = subprocess.Popen(["/bin/sleep", "infinity"])
pathlib.Path("/run/child").write_text(str(child.pid))
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if pathlib.Path("/run/sick").exists() else 200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8888), Answer).serve_forever()
"""
UNIT = """
[Service]
ExecStart=/usr/bin/python3 /srv/worker.py
KillMode=process
Restart=on-failure
RestartSec=0.2
"""
ENSURE = "from ci.concourse.worker import watchdog as w; w._PATIENCE = 2; print(w.{}) "
# Of each service, how far it is open by the scale of `systemd-analyze security`, 0 to 10.
# They were 3.5, (no watch,) 6.2, 4.9, 9.6, 6.2 and 9.6.
MOST_OPEN = {
    "concourse-web.service": 1.9,
    "concourse-worker-watch.service": 1.7,
    "gpu-ci-devices.service": 5.6,
    "gpu-ci-health.service": 4.0,
    "gpu-ci-ports.service": 2.0,
    "gpu-ci-run@.service": 3.9,
    "gpu-ci-runners.service": 3.9,
    "gpu-ci-selftest.service": 9.0,
    "gpu-ci-wake.service": 5.0,
    "concourse-worker.service": 9.6,
}
VALUES = {
    "command": "/bin/true", "environment": "/etc/x", "volumes": "/x", "low_port": False,
    "tasks": "/x", "runc": "/x", "end": "basic.target",
    "dispatch": "/x", "app": "/x", "variable": "X", "revision": "1", "unit": "worker/0",
    "stamp": "stamp", "python": "/usr/bin/python3", "run": "x", "state": "x", "logs": "x",
    "launcher": "/bin/true", "program": "/x", "port": 8888, "patience": 300, "limit": "900",
    "guard": "basic.target", "shut": "/bin/true", "open": "/bin/true", "before": "basic.target",
    "needs": "/x", "homes": "x", "private": "/x",
}  # fmt: skip


pytestmark = selftest_machine.NEEDS


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("watch") as host:
        yield host


def install(host, worker, unit=UNIT):
    for path, text in (
        ("/srv/worker.py", worker),
        ("/etc/systemd/system/concourse-worker.service", unit),
    ):
        host.machine.run(["/usr/bin/tee", path], stdin=text)
    host.sh("systemctl daemon-reload; systemctl restart concourse-worker")


def process(host):
    return host.sh("systemctl show -P MainPID concourse-worker").stdout.strip()


def test_a_worker_that_hangs_is_started_anew_and_its_builds_go_on(host):
    install(host, WORKER)
    assert host.run(ENSURE.format("ensure(8888)")).strip() == "True"
    assert host.run(ENSURE.format("ensure(8888)")).strip() == "False"
    first = process(host)
    child = host.sh("sleep 4; cat /run/child").stdout
    assert process(host) == first, "a worker that answers was ended"
    host.sh("touch /run/sick")
    until(lambda: process(host) not in (first, "0"), 60)
    host.sh(f"rm /run/sick; kill -0 {child}")
    said = host.sh("journalctl -q -u concourse-worker-watch -o cat").stdout
    assert "SIGABRT to its process alone, which systemd starts again" in said


def test_one_that_is_not_even_ended_by_that_is_killed(host):
    until(lambda: host.sh("ls /run/child; rm -f /run/sick").stdout, 60)
    first = process(host)
    host.sh(f"kill -STOP {first}")
    until(lambda: process(host) not in (first, "0"), 90)


def test_it_goes_and_comes_with_the_worker(host):
    host.sh("systemctl stop concourse-worker")
    state = "systemctl show -P ActiveState concourse-worker-watch"
    until(lambda: host.sh(state).stdout == "inactive\n", 60)
    host.sh("systemctl start concourse-worker")
    until(lambda: host.sh(state).stdout == "active\n", 60)
    assert host.run(ENSURE.format("remove()")).strip() == "True"
    assert host.run(ENSURE.format("remove()")).strip() == "False"
    places = "/usr/local/lib/concourse-worker-watch /etc/systemd/system"
    assert "watch" not in host.sh(f"find {places}", check=False).stdout


def test_a_worker_that_keeps_failing_is_told_from_one_that_has_failed_once(host):
    ask = "from ci.concourse import service as s; import json; print(json.dumps(s.failing()))"
    host.sh("journalctl --rotate --vacuum-time=1s")
    install(host, "import time; time.sleep(600)")
    assert json.loads(host.run(ask)) == []
    host.sh("systemctl kill --signal=SIGKILL concourse-worker; sleep 1")
    assert json.loads(host.run(ask)) == []
    install(host, "raise SystemExit(1)")
    until(lambda: json.loads(host.run(ask)), 60)
    ((name, starts),) = json.loads(host.run(ask))
    assert (name, starts >= 3) == ("worker", True)
    # Mended: that it ends once more is no failure of before.
    install(host, "import time; time.sleep(600)")
    restart = "services.ensure_running('concourse-worker.service', restart=True)"
    host.run(f"from machine import systemd as services; {restart}")
    host.sh("systemctl kill --signal=SIGKILL concourse-worker")
    shown = "systemctl show --property=NRestarts --value concourse-worker"
    until(lambda: host.sh(shown).stdout.strip() == "1", 60)
    assert json.loads(host.run(ask)) == []


# A hook that ends the worker's process, as before a start with new tags, and is killed then.
ENDED = """
import os, signal
from ci.concourse import service
from ci.concourse.worker import worker
from machine import process_cleanup as leftovers
leftovers.end_processes([worker.main_pid()])
os.kill(os.getpid(), signal.SIGKILL)
"""
# As the worker does it: SIGTERM is no failure, and SIGUSR1 lets it end by itself.
POLITE = """
import pathlib, signal, sys
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: sys.exit(0))
pathlib.Path("/run/heeds").touch()
signal.pause()
"""
LAND = """
from ci.concourse.worker import worker
worker._may_have_web = lambda: True
print(worker.land())
"""
TAKE_UP = """
from machine import systemd as services
services.ensure_enabled("concourse-worker.service")
services.ensure_running("concourse-worker.service", restart=True)
"""


@pytest.fixture
def polite(host):
    """A worker by the charm's own unit, which heeds signals by now."""
    host.sh("rm -f /run/heeds; mkdir -p /srv/volumes")
    places = {"environment": "/dev/null", "volumes": "/srv/volumes"}
    values = {**VALUES, **places, "command": "/usr/bin/python3 /srv/worker.py"}
    install(
        host, POLITE, templates.render(service.TEMPLATES, "concourse-worker.service", **values)
    )
    host.sh("systemctl enable --now concourse-worker")
    until(lambda: host.sh("ls /run/heeds", check=False).stdout, 60)
    return host


def test_a_worker_that_was_ended_for_a_restart_comes_back_though_the_hook_was_killed(polite):
    first = process(polite)
    ended = polite.machine.run([*polite.python, "-c", ENDED], check=False)
    assert ended.returncode
    until(lambda: process(polite) not in (first, "0"), 60)


def test_a_worker_that_has_landed_stays_down_until_it_is_taken_up(polite):
    first = process(polite)
    # It may have ended by the time that its number is read.
    assert polite.run(LAND).strip() in (first, "0")
    # It is inactive only after systemd has tried to start it once more.
    state = "systemctl show -P ActiveState -P ConditionResult concourse-worker"
    until(lambda: polite.sh(state).stdout.split() == ["inactive", "no"], 60)
    polite.sh("systemctl start concourse-worker")
    assert process(polite) == "0"
    polite.run(TAKE_UP)
    assert process(polite) != "0"


@pytest.mark.parametrize("name", MOST_OPEN)
def test_a_service_is_no_more_open_than_it_was(name, tmp_path):
    analyze = shutil.which("systemd-analyze")
    version = subprocess.run([analyze or "true", "--version"], capture_output=True, text=True)
    found = re.match(r"systemd (\d+)", version.stdout)
    if not found or int(found.group(1)) < 250:
        pytest.skip("this systemd can't tell of a unit that is not loaded")
    path = tmp_path / name
    values = {**VALUES, "command": ["/bin/true"]} if name == "gpu-ci-wake.service" else VALUES
    (source,) = (*ROOT.glob(f"templates/{name}"), *ROOT.glob(f"lib/*/templates/{name}"))
    path.write_text(templates.render(source.parent, name, **values))
    said = subprocess.run(
        [analyze, "security", "--offline=yes", "--no-pager", str(path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
    assert level, said.stderr
    assert float(level.group(1)) <= MOST_OPEN[name]
