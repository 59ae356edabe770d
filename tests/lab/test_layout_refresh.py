# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit of the layout before lib/machine and lib/gpu_agent is refreshed to this one, and back.

Jobs run meanwhile, and one waits for its GPU in each version's own processes. Nothing is lost
either way; two refreshes later nothing of the old layout is left. `make soak` runs it; a refresh
under a job, and back, is in test_restart.py.
"""

import io
import json
import os
import pathlib
import re
import subprocess
import time
import zipfile
from collections.abc import Callable

import pytest

from tests.lab import leases, selftest_runs, walk
from tests.lab.session import ROOT, Lab, Progress
from tests.lab.site import Site
from tests.lab.watching import PATIENCE, Watch

pytestmark = pytest.mark.skipif(
    "GPUCI_SOAK" not in os.environ, reason="a lab of its own, minutes: make soak"
)
# The last commit of the old layout, and what of it a packed charm has.
OLD = "9c25435"
FILES = (
    "LICENSE actions.yaml config.yaml dispatch icon.svg lib lxd-profile.yaml metadata.yaml "
    "requirements.txt src templates"
)
# What is the packer's: the packages, which are the same, and what they were packed on.
PACKERS = ("venv/", "manifest.yaml")
# Where a later version differs, so that its copies of agent and runtime have other names.
AGENT, RUNTIME = "lib/gpu_agent/install.py", "lib/gpu_runtime/signals.py"
QUEUED = "no suitable workers found, waiting for worker"
# A task that stays, two that come and go, and a command of gpu-run; two GPUs are out of use.
CARDS = 6
CORDONED, SICK = 4, 5
STATUS = r"Worker ready \(GPU: 4x NVIDIA, .*GPU 4 \(?kept for a test.*GPU 5 .*\)"
UNITS = ("gpu-ci-devices.service", "gpu-ci-health.service", "gpu-ci-run.socket")
BOOT = "gpu-ci-selftest.service"
ALICE = (
    "systemd-run --quiet --collect --unit={} -p User=alice -p KillMode=process "
    "/usr/local/bin/gpu-run sleep 4321"
)
METRICS = """
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:{}/metrics", timeout=10) as answer:
    print(answer.read().decode())
"""
# Between the switch of the agent's copy and the units that run from it this version's first hook
# dies. The next one notes beforehand what the units of before do, and what the command says.
LOOK = "/run/look-after-kill"
DYING = f'''

_whole = ensure


def ensure(*given, **named):
    if os.path.exists("/run/killed") and not os.path.exists("{LOOK}"):
        units = "systemctl is-active {" ".join(UNITS)}"
        os.system(f"({{units}}; /opt/gpu-ci/bin/gpu-selftest --help; echo $?) >{LOOK} 2>&1")
    changed = _whole(*given, **named)
    if not os.path.exists("/run/killed"):
        pathlib.Path("/run/killed").touch()
        os.kill(os.getpid(), 9)
    return changed
'''
# What has a name, or runs from a copy, of the old layout.
TRACES = r"""
cd /opt/gpu-ci
ls -d lib/*/gpuci app/*/lib/gpuci app/*/src/{{gpu_run,health,machine,oci,selftest,wake}} 2>&-
grep -rlE -- '-m (health|wake|gpu_run|selftest)( |$)|src/(health|wake|gpu_run|selftest)|{copies}' \
    /etc/systemd/system /run/systemd bin engines /usr/local/bin /etc/gpu-ci /etc/concourse \
    /run/gpu-ci /var/lib/gpu-ci 2>&-
for process in /proc/[0-9]*; do
    {{ tr '\0' '\n' <$process/cmdline; tr '\0' '\n' <$process/environ
        readlink $process/cwd $process/fd/*; cat $process/maps; }} 2>&- |
        grep -E '{copies}' | sed "s,^,$process ,"
done
true
"""


def of_before(packed: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """The charm of the old layout, with the packages of the one that is packed."""
    argv = ["git", "-C", str(ROOT), "archive", "--format=zip", OLD, *FILES.split()]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed, which has the old layout")
    if done.returncode:
        pytest.skip(f"the old layout is not here: {done.stderr.decode().strip()}")
    with (
        zipfile.ZipFile(packed) as ours,
        zipfile.ZipFile(io.BytesIO(done.stdout)) as theirs,
        zipfile.ZipFile(target, "w") as made,
    ):
        needed = packages(theirs.read("requirements.txt").decode())
        locks = ("requirements.txt", "requirements-agent.txt")
        if missing := needed - packages("".join((ROOT / one).read_text() for one in locks)):
            pytest.skip(f"the packed charm lacks what the old layout needs: {', '.join(missing)}")
        for entry in ours.infolist():
            if entry.filename.startswith(PACKERS):
                made.writestr(entry, ours.read(entry))
        for entry in theirs.infolist():
            made.writestr(entry, theirs.read(entry))
    return target


def packages(locked: str) -> set[str]:
    """The names in a lock file."""
    return set(re.findall(r"^([\w.-]+)==", locked, re.MULTILINE))


def changed(packed: pathlib.Path, target: pathlib.Path, more: dict[str, str]) -> pathlib.Path:
    """The packed charm with more at the end of some files, so that it is another version."""
    with zipfile.ZipFile(packed) as ours, zipfile.ZipFile(target, "w") as made:
        for entry in ours.infolist():
            made.writestr(entry, ours.read(entry) + more.get(entry.filename, "").encode())
    return target


class Unit:
    """worker/0, whose charm is refreshed under what runs there.

    Three tasks have a GPU, one has none and one waits in web's queue, since web lets no more than
    four run. Of alice's commands one has a GPU, and one is in the worker's line for the next.
    """

    def __init__(self, worker: Site):
        self.site, self.tasks, self.number = worker, leases.Tasks(worker), 0
        self.has = self.alices_next()
        self.until(lambda: self.word(self.has) == "sleep")
        self.running = [*map(self.tasks.start, ("stays", "other", "one"))]
        for task in (*self.running, self.tasks.start("without", GPU_COUNT="0")):
            task.begun()
        self.let_wait()

    def alices_next(self) -> str:
        """Have alice ask for a GPU; the service in which she does."""
        self.number += 1
        name = f"alice-{self.number}"
        self.site.sh(ALICE.format(name))
        return name

    def word(self, service: str) -> str:
        """The name of a service's first process: gpu-run, or its command once that has begun."""
        return self.site.sh(f"cat /proc/$(systemctl show -P MainPID {service})/comm").strip()

    def let_wait(self) -> None:
        """Have a task wait in web's queue, and a command of alice's in the worker's line."""
        self.waits = self.tasks.start(f"waits-{self.number}")
        self.waits.build.line(QUEUED)
        self.next = self.alices_next()
        leases.waiting(self.site, 1)

    def refresh(self, charm: pathlib.Path) -> None:
        """Refresh it. What runs has its process and its GPU still, and who waits waits."""
        before, begun = self.runs(), time.monotonic()
        self.site.lab.model.refresh("worker", charm)
        self.site.lab.settle()
        print(f"refreshed to {charm.name} in {time.monotonic() - begun:.1f} s")
        state, text = self.site.status()
        assert state == "active"
        assert re.fullmatch(STATUS, text), text
        assert self.runs() == before
        for task in self.running:
            task.answer()
        self.site.worker("lab-worker-0", 60)

    def runs(self) -> dict[str, object]:
        """The process of each that runs, what leases say of it, and who waits in the line."""
        gpus = [task.gpus() for task in self.running]
        alices = self.site.sh(f"systemctl show -P MainPID {self.has} {self.next}").split()
        scope = re.findall(r"gpu-run-\w+\.scope", self.site.sh(f"cat /proc/{alices[0]}/cgroup"))
        held = {
            name: one["since"]
            for name, one in leases.holders(self.site).items()
            if one["gpus"] in gpus or name in scope
        }
        assert len(held) == len(gpus) + 1
        tasks = [task.process() for task in self.running]
        line = [one["call"] for one in leases.waiting(self.site, 1)]
        return {"tasks": tasks, "alice's": alices, "held": held, "line": line}

    def one_ends(self) -> None:
        """End a task: alice's next command has its GPU then, and web lets another task go on."""
        task = self.running.pop()
        gpus = task.gpus()
        assert task.end() == 0, task.build.output
        self.until(lambda: self.word(self.next) == "sleep")
        assert gpus in [holder["gpus"] for holder in leases.holders(self.site).values()]
        assert len(leases.waiting(self.site, 1)) == 1

    def go_on(self) -> None:
        """End the next task: who waited has its GPU. Then a new one gets one of alice's."""
        task = self.running.pop()
        gpus = task.gpus()
        assert task.end() == 0, task.build.output
        assert self.waits.gpus() == gpus
        self.site.sh(f"systemctl stop {self.has}")
        self.has = self.next
        new = self.tasks.start(f"new-{self.number}")
        assert len(new.gpus()) == 1
        self.running += [self.waits, new]

    def works(self, module: str) -> None:
        """See that each service of the unit's own does its work, by the modules of one layout.

        Args:
            module: what the watch runs.
        """
        sh = self.site.sh
        assert sh(f"systemctl is-active {' '.join(UNITS)}").split() == ["active"] * len(UNITS)
        assert sh("systemctl list-units --failed --plain --no-legend 'gpu-*' 'concourse-*'") == ""
        current = sh("readlink -f /opt/gpu-ci/app/current").strip()
        of_watch = sh("tr '\\0' ' ' </proc/$(systemctl show -P MainPID gpu-ci-health)/cmdline")
        assert of_watch.strip().endswith(f" -m {module}")
        for service in UNITS[:2]:
            environment = f"/proc/$(systemctl show -P MainPID {service})/environ"
            assert f"PYTHONPATH={current}/lib:" in sh(f"tr '\\0' '\\n' <{environment}")
        self.until(lambda: len(re.findall("^gpuci_gpu_power_watts{", self.page(), re.M)) == CARDS)
        assert "free: 0 of 6" in sh("runuser -u alice -- gpu-run --list")
        seen = selftest_runs.take(self.site, selftest_runs.indexes(self.site))
        print(seen.why())
        assert seen.quarantine.keys() == {CORDONED, SICK}
        assert seen.quarantine[CORDONED]["reason"] == "kept for a test"
        sh(f"systemctl start {BOOT}")

    def page(self) -> str:
        """The metrics that it serves; empty where it serves none."""
        port = self.site.lab.model.config("worker")["gpu-metrics-port"]
        argv = ["/usr/bin/python3", "-c", METRICS.format(port)]
        return self.site.machine().run(argv, check=False).stdout

    def traces(self, copies: str) -> str:
        """What is of the old layout on the machine, whose copies' names match this."""
        # Its own command line has nothing of it.
        script = TRACES.format(copies=copies)
        return self.site.machine().enter("/bin/bash", stdin=script).stdout

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something.

        Raises:
            AssertionError: it does not come about.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def lab(machines_work, tmp_path):
    lab = Lab(tmp_path / "lab", Progress())
    yield lab
    lab.controller.destroy()


@pytest.fixture
def charms(tmp_path):
    """The charm of the old layout, this one's, one whose first hook dies, and a later one."""
    new = walk.pack()
    return {
        "old": of_before(new, tmp_path / "old.charm"),
        "new": new,
        "dying": changed(new, tmp_path / "dying.charm", {AGENT: DYING}),
        "later": changed(new, tmp_path / "later.charm", dict.fromkeys((AGENT, RUNTIME), "#")),
    }


@pytest.fixture
def unit(lab, charms):
    """A unit that runs the old layout, with a GPU that is cordoned and one that is quarantined."""
    walk.choose(lab)
    walk.deploy(lab, charms["old"], gpus=CARDS)
    lab.settle()
    walk.check(lab)
    site = Site(lab)
    site.fly.login()
    site.sh("groupadd --system gpu-users; useradd -m -G gpu-users alice")
    site.configure(gpu_run_group="gpu-users")
    lab.model.run_action("worker/0", "gpu-cordon", {"gpu": "gpu-4", "reason": "kept for a test"})
    lab.settle()
    watch = Watch(site)
    watch.faults(SICK, ("set", str(SICK), "field-230=1"), ("xid", str(SICK), "79"))
    assert watch.status_says("4x NVIDIA, 2 quarantined"), site.status()
    unit = Unit(site)
    yield unit
    unit.tasks.end()


def test_nothing_is_lost_to_the_new_layout_and_back(unit, charms):
    sh = unit.site.sh
    front = sh("cat /opt/gpu-ci/bin/runc")
    links = sh("cd /opt/gpu-ci; readlink app/current lib/gpuci")
    copies = "|".join(re.findall(r"[0-9a-f]{16}", links))

    unit.refresh(charms["new"])
    unit.works("gpu_agent.health")
    assert unit.traces(copies)  # those that go on, or are kept for a refresh more
    # As after a hook that was killed before it rewrote the GPU runtime.
    unit.site.machine().write("/opt/gpu-ci/bin/runc", front, 0o755)
    unit.one_ends()
    unit.go_on()
    unit.let_wait()

    unit.refresh(charms["old"])
    unit.works("health")
    unit.one_ends()
    unit.go_on()
    unit.let_wait()

    unit.refresh(charms["dying"])
    log = unit.site.lab.controller.log_path("worker/0").read_text()
    assert 'hook "upgrade-charm" failed' in log
    look = sh(f"cat {LOOK}").split()
    assert (look[: len(UNITS)], look[-1]) == (["active"] * len(UNITS), "0"), look
    unit.works("gpu_agent.health")
    # Now a task waits in the worker's line, which this refresh does not restart.
    unit.one_ends()

    unit.refresh(charms["later"])
    unit.works("gpu_agent.health")
    unit.go_on()
    # A lease has one receipt, whatever version it began and ended under.
    ended = 9
    unit.until(lambda: sh("cat /var/log/gpu-ci/receipts.log").count("\n") >= ended)
    lab = unit.site.lab
    report = lab.model.run_action("worker/0", "gpu-report", {"format": "json"})
    lab.settle()
    results = json.loads(lab.store.value("SELECT results FROM action WHERE id = ?", report))
    assert sum(row["leases"] for row in json.loads(results["json"])["rows"]) == ended
    # What began under the old layout is over then.
    unit.tasks.end()
    sh("systemctl stop 'alice-*'")
    assert unit.traces(copies) == ""
