# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with two simulated GPUs, gpu-run, a Gitea server, and the daemon that keeps runners.

The server and its runner are stand-ins. If GPUCI_GITEA and GPUCI_GITEA_RUNNER name the real
programs, it is these; GPUCI_GITEA_STATIC is the server's STATIC_ROOT_PATH where it needs one.
"""

import base64
import contextlib
import json
import os
import pathlib
import secrets
import time

from ci.runners import settings
from ci.runners.labels import Facts

SERVER, RUNNER, STATIC = (
    os.environ.get(f"GPUCI_GITEA{name}", "") for name in ("", "_RUNNER", "_STATIC")
)
IS_REAL = bool(SERVER and RUNNER)
PREFIX = "worker-0-ab12"
USER, PASSWORD = "root1", "Passw0rd1234"
PORT = 3900
URL = f"http://127.0.0.1:{PORT}"
DATA = "/srv/data"
REPORT = "/run/gpu-ci-runners/report.json"
HOMES = "/var/lib/private/gpu-ci-runners"
DAEMON, GITEA = "gpu-ci-runners", "gitea"
ANY = ("self-hosted", "linux")
GPU = (*ANY, "x64", "gpu")
# In seconds: for what takes some on a quiet machine.
SOON, LATER = 60, 120

_UNIT = """[Service]
Type=notify
Environment=PYTHONPATH=/srv/charm/lib:/srv/charm/src:/srv/charm/venv
ExecStart=/usr/bin/python3 -B -m ci.runners.daemon
"""
_STANDIN = """[Service]
Environment=PYTHONPATH=/srv/charm/venv
ExecStart=/srv/fakes/gitea/server-standin {port} {data}/gitea.json {data}/token
"""
_REAL = """[Service]
User=forge
WorkingDirectory={data}
Environment=HOME={data}
ExecStart={program} --config {data}/app.ini web
"""
_INI = """RUN_MODE = prod
RUN_USER = forge
WORK_PATH = {data}/work
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = {url}/
{static}
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = {data}/gitea.db
[repository]
ROOT = {data}/repos
[security]
INSTALL_LOCK = true
SECRET_KEY = {secret}
[service]
DISABLE_REGISTRATION = true
[log]
LEVEL = warn
MODE = console
"""
# Prints the API token of a new administrator.
_SET_UP = """set -e
useradd -r -d {data} forge
chown -R forge {data}
gitea() {{
    setpriv --reuid forge --regid forge --clear-groups env -i HOME={data} USER=forge \
        PATH=/usr/bin:/bin {program} --config {data}/app.ini "$@"
}}
gitea migrate >/dev/null 2>&1
gitea admin user create --username {user} --password {password} --email a@example.com --admin \
    --must-change-password=false --access-token --access-token-name t \
    --access-token-scopes all 2>&1 | sed -n 's/.*created\\.\\.\\. //p'
"""
# What jobs do. It prints JSON on a line of its own, so that it is found in a log.
_JOB = """#!/usr/bin/python3
import errno, fcntl, json, os, pathlib, socket, subprocess, sys, time

def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return "OK"
    except OSError as error:
        return errno.errorcode[error.errno]

def lists(path):
    try:
        return os.listdir(path)
    except OSError as error:
        return errno.errorcode[error.errno]

def tell(**facts):
    print("TOLD", json.dumps(facts), flush=True)

def nodes():
    return {path.name: opens(path) for path in sorted(pathlib.Path("/dev").glob("nvidia[0-9]"))}

uuids = [one for one in os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if "GPU-" in one]

def claim():
    # One process at a time can have a GPU: a lock ends with its process, and is the same in each
    # namespace.
    for uuid in uuids:
        claims.append(open("/srv/claims/" + uuid))
        try:
            fcntl.flock(claims[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("HELD 2 TIMES")

claims = []
match sys.argv[1:]:
    case ["look"]:
        child = [sys.executable, __file__, "nodes"]
        line = " ".join(child)
        tell(
            uuids=uuids, nodes=nodes(), uid=os.getuid(), environment=dict(os.environ),
            child=json.loads(subprocess.check_output(["setsid", "-w", *child])),
            shell=json.loads(subprocess.check_output(["sh", "-c", f"cd /; {line}"])),
            privileges=[line for line in open("/proc/self/status") if line[:10] == "NoNewPrivs"],
            switch=subprocess.call(["su", "root", "-c", "true"], stderr=subprocess.DEVNULL),
        )
    case ["nodes"]:
        print(json.dumps(nodes()))
    case ["folders", *paths]:
        tell(**{path: lists(path) for path in paths})
    case ["connect", path]:
        with socket.socket(socket.AF_UNIX) as one:
            tell(status=errno.errorcode.get(one.connect_ex(path), "OK"))
    case ["claim", seconds]:
        claim()
        tell(uuids=uuids)
        time.sleep(float(seconds))
    case ["hold", name]:
        claim()
        tell(uuids=uuids)
        end = time.monotonic() + 300
        while not pathlib.Path("/srv/go", name).exists():
            assert time.monotonic() < end, "no test let go"
            time.sleep(0.1)
"""


class Site:
    """The machine, its server and its runners.

    Args:
        box: the machine, as run_machine.Box; or a virtual one, as in tests/soak/guest/runners.py.
        patience: how many times as long as on a quiet machine things may take.
    """

    def __init__(self, box, patience=1):
        self.box, self.machine, self.sh = box, box.machine, box.sh
        self.patience = patience
        policy = json.loads(self.machine.read("/etc/gpu-ci/policy.json"))
        self.uuids = [gpu["uuid"] for gpu in policy["gpus"]]
        self.token = self._install_server()
        self.sh("mkdir -m 755 /srv/go /srv/claims; mkdir -p -m 1777 /srv/said")
        self.sh(f"cd /srv/claims; touch {' '.join(self.uuids)}")
        self.machine.write("/srv/job", _JOB, mode=0o755)
        self.machine.write(f"/etc/systemd/system/{DAEMON}.service", _UNIT)
        self.sh(f"systemctl daemon-reload; systemctl start {GITEA}")
        self.wait(self.answers)

    def _install_server(self):
        """Its unit and its data; its API token."""
        names = {"data": DATA, "port": PORT, "url": URL, "user": USER, "password": PASSWORD}
        names["program"] = f"/srv/gitea/{pathlib.Path(SERVER).name}"
        unit = f"/etc/systemd/system/{GITEA}.service"
        self.sh(f"install -d -m 700 {DATA}")
        if not IS_REAL:
            self.machine.write(unit, _STANDIN.format(**names))
            token = secrets.token_hex(20)
            self.machine.write(f"{DATA}/token", token, mode=0o600)
            return token
        names["static"] = "STATIC_ROOT_PATH = /srv/gitea-static" if STATIC else ""
        names["secret"] = secrets.token_hex(20)
        self.machine.write(f"{DATA}/app.ini", _INI.format(**names), mode=0o600)
        self.machine.write(unit, _REAL.format(**names))
        token = self.sh(_SET_UP.format(**names)).stdout.strip()
        assert len(token) == 40, "the administrator was not made"
        return token

    def see(self, script):
        """What a script says that changes nothing; quicker than `sh`."""
        return self.machine.enter("/bin/sh", "-c", script, check=False).stdout

    def answers(self):
        return bool(self.see(f"curl -sf {URL}/api/v1/version"))

    def call(self, method, path, body=None):
        """The status and the answer of the server's API. The token is in no argument."""
        config = [f'url = "{URL}{path}"', f"request = {method}", 'write-out = "\\n%{http_code}"']
        config += [f'header = "Authorization: token {self.token}"', "silent", "max-time = 30"]
        if body is not None:
            data = json.dumps(json.dumps(body))
            config += ['header = "Content-Type: application/json"', f"data = {data}"]
        done = self.machine.enter("/usr/bin/curl", "-K", "-", stdin="\n".join(config))
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    def api(self, method, path, body=None):
        """What the server's API answers; it must succeed."""
        status, text = self.call(method, f"/api/v1{path}", body)
        assert 200 <= status < 300, (method, path, status, text)
        return json.loads(text) if text.startswith(("{", "[")) else text

    # Workflows

    def push(self, **jobs):
        """Start a run of these jobs; its repository, which is a new one.

        A job is the labels that it asks for and the script that it runs, or more of a job's YAML.
        """
        name = f"r{secrets.token_hex(4)}"
        whole = {
            job: {"runs-on": [*labels], "steps": [{"run": script}], **(more[0] if more else {})}
            for job, (labels, script, *more) in jobs.items()
        }
        workflow = json.dumps({"on": "push", "jobs": whole})
        content = base64.b64encode(workflow.encode()).decode()
        self.api("POST", "/user/repos", {"name": name, "auto_init": True})
        path = f"/repos/{USER}/{name}/contents/.gitea/workflows/w.yml"
        self.api("POST", path, {"content": content, "message": "m"})
        self.wait(lambda: self.jobs(name))
        return name

    def jobs(self, name):
        """The jobs of a run, by name."""
        found, page = [], 1
        path = f"/repos/{USER}/{name}/actions/jobs?limit=50&page="
        while more := self.api("GET", f"{path}{page}")["jobs"]:
            found += more
            page += 1
        return {job["name"]: job for job in found}

    def states(self, name):
        """Of each job of a run its conclusion or, if it has not ended, its status."""
        jobs = self.jobs(name)
        return {one: job.get("conclusion") or job["status"] for one, job in jobs.items()}

    def wait_for(self, name, seconds=LATER, **states):
        """Wait until jobs of a run have these states, the others any."""
        self.wait(lambda: states.items() <= self.states(name).items(), seconds)

    def log(self, name, job):
        """The lines that a job has written."""
        number = self.jobs(name)[job]["id"]
        text = self.api("GET", f"/repos/{USER}/{name}/actions/jobs/{number}/logs")
        return [line.partition(" ")[2] for line in text.splitlines()]

    def told(self, name, job):
        """What /srv/job has told in a job, all together."""
        lines = [line for line in self.log(name, job) if line.startswith("TOLD ")]
        found = {}
        for line in lines:
            found |= json.loads(line.partition(" ")[2])
        return found

    def result(self, name, job, seconds=LATER):
        """What /srv/job has told in a job, once it has succeeded."""
        self.wait(lambda: self.states(name)[job] not in ("queued", "in_progress"), seconds)
        assert self.states(name)[job] == "success", self.log(name, job)
        return self.told(name, job)

    def let_go(self, name):
        self.sh(f"touch /srv/go/{name}")

    def cancel(self, name):
        """Cancel a run as people do, in the web: the API has nothing for it."""
        runs = {job["run_id"] for job in self.jobs(name).values()}
        jar = f"{DATA}/cookies"
        form = f"--data-urlencode user_name={USER} --data-urlencode password={PASSWORD}"
        self.sh(f"curl -sf -o /dev/null -c {jar} {form} {URL}/user/login")
        for run in runs:
            where = f"{URL}/{USER}/{name}/actions/runs/{run}/cancel"
            self.sh(f"curl -sf -o /dev/null -b {jar} -X POST {where}")

    # Runners

    def configure(self, **changes):
        """Start the daemon, or restart it."""
        facts = Facts("nvidia", "a100-sxm4-80gb", 80)
        runner = f"/srv/gitea-runner/{pathlib.Path(RUNNER).name}" if IS_REAL else ""
        values = {
            "service": "gitea",
            "url": URL,
            "scope": "",
            "credential": {"api-token": self.token},
            "prefix": PREFIX,
            "program": runner or "/srv/fakes/gitea/runner-standin",
            "most": 3,
            "per_runner": 1,
            "labels": ("lab",),
            "gpus": dict.fromkeys(self.uuids, facts),
            "cuda": "13.0",
            "driver": "580.95.05",
        }
        text = settings.as_text(settings.Settings(**{**values, **changes}))
        self.machine.write(str(settings.PATH), text, mode=0o600)
        self.sh(f"systemctl stop {DAEMON}; rm -f {REPORT}; systemctl start {DAEMON}")

    def report(self):
        text = self.see(f"cat {REPORT} || echo '{{}}'")
        return {"fault": "", "text": "", "waiting": 0, "runners": [], **json.loads(text)}

    def runners(self, state=""):
        """The runners of the report, of one state or of any, by unit."""
        found = self.report()["runners"]
        return {one["unit"]: one for one in found if state in ("", one["state"])}

    def listed(self):
        """The runners that the server knows, by name."""
        found = self.api("GET", "/admin/actions/runners?limit=50")["runners"]
        return {one["name"]: one for one in found}

    def units(self):
        found = self.see("systemctl list-units --plain --no-legend 'gpu-ci-runner-*'")
        return {line.split()[0] for line in found.splitlines()}

    def is_ready(self):
        """Whether two runners with a GPU and one without are idle, and the server has no other."""
        idle = self.runners("idle")
        gpus = sorted(tuple(one["gpus"]) for one in idle.values())
        return (
            gpus == sorted([(), *((uuid,) for uuid in self.uuids)])
            and idle.keys() == self.units()
            and {*self.listed()} == {name_on_server(unit) for unit in idle}
        )

    def main_pid(self, unit):
        return int(self.see(f"systemctl show -P MainPID {unit}"))

    def runner_of(self, name, job):
        """The unit of a job's runner."""
        runner = self.jobs(name)[job]["runner_name"]
        return f"gpu-ci-runner-{runner.removeprefix(f'{PREFIX}-')}.service"

    def holders(self):
        """The processes of jobs that hold something."""
        return self.see("pgrep -f '[/]srv/job hold'").split()

    def wait(self, ready, seconds=SOON):
        """How long it took until `ready`."""
        began = time.monotonic()
        while not ready():
            took = time.monotonic() - began
            assert took < seconds * self.patience, f"it did not happen: {self.look()}"
            time.sleep(0.2)
        return time.monotonic() - began

    def look(self):
        """What helps to see why a test failed."""
        said = self.see(f"cat {REPORT}; journalctl -n 50 -o cat --no-pager -u {DAEMON}")
        return f"{said}\n{self.box.leases()}"

    def settle(self):
        """End all that runs, as a test leaves it."""
        self.sh(f"systemctl is-active -q {GITEA} || systemctl start {GITEA}")
        self.wait(self.answers)
        status = "status=queued&status=in_progress"
        left = self.api("GET", f"/admin/actions/jobs?limit=50&{status}")["jobs"]
        for name in {job["url"].split("/repos/")[1].split("/")[1] for job in left}:
            self.cancel(name)
        if left or self.runners("busy"):
            self.sh(f"systemctl kill -s KILL 'gpu-ci-runner-*'; systemctl restart {DAEMON}")
        self.box.end_all()
        self.sh("rm -rf /srv/go/*")


def slice_of(unit):
    """The slice of a runner's unit, which has the lease."""
    return f"gpucirunner-{unit.removeprefix('gpu-ci-runner-').removesuffix('.service')}.slice"


def name_on_server(unit):
    return f"{PREFIX}-{unit.removeprefix('gpu-ci-runner-').removesuffix('.service')}"


@contextlib.contextmanager
def started(name, more=()):
    """A Site whose daemon runs."""
    # A virtual machine has this file, and not what the other needs.
    from tests.functional import run_machine

    more = dict(more)
    if IS_REAL:
        more |= {
            "/srv/gitea": pathlib.Path(SERVER).parent,
            "/srv/gitea-runner": pathlib.Path(RUNNER).parent,
        }
    if STATIC:
        more["/srv/gitea-static"] = pathlib.Path(STATIC)
    with run_machine.started(name, more) as box:
        site = Site(box)
        site.configure()
        # From here on it is the charm's own unit, which keeps much from the daemon.
        box.sh("mkdir -p /opt/gpu-ci/app; ln -s /srv/charm /opt/gpu-ci/app/current")
        box.host.run("from ci.runners import daemon_unit as one; one.install(one.current())")
        yield site
