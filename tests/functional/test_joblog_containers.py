# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Lines of the watch in the logs of steps: real containerd, shim, runc, pipes and terminals."""

import contextlib
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

import pytest

from gpu_agent.model.card import Card
from gpu_agent.model.decisions import Tell
from gpu_agent.model.observations import Holding, Moment
from gpu_agent.reporting.joblog import step_stderr as step_log
from gpu_agent.reporting.joblog.job_log import JobLog
from gpu_agent.reporting.joblog.step_stderr import Outcome
from gpu_runtime.holder_usage import Host
from tests.functional.containerd_worker import NEEDS, ROOT, UUIDS, worker_in_a_namespace
from tests.functional.lease_site import alive, site, until, until_child, with_rights_of_the_watch

PATIENCE = 60.0  # s, for a busy machine
LINE = b"[gpu-ci] GPU 0 failed\n"
SESSION = "4b825dc6-42cb-4eb9-a060-e54bf8d69288"

pytestmark = NEEDS


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(0, 1)
        worker.start()
        yield worker


@pytest.fixture
def two(started):
    yield from site(started, 0, 1, wait_timeout=60)


def holding(two, handle):
    lease = two.worker.leases()["holders"].get(handle, {"gpus": [], "since": 0.0})
    bundle = str(two.worker.folder_of(handle))
    return Holding(handle, bundle, tuple(lease["gpus"]), lease["since"], in_use=True, waited=0.0)


def say(two, handle, text=LINE):
    return step_log.say(holding(two, handle), text)[0]


def tell(two, handle):
    """For a moment a step is still runc's, which has started it."""
    until(lambda: say(two, handle) is Outcome.SAID, PATIENCE)


class Terminal:
    """What web has of a task: the other end of a terminal, by way of shim and containerd."""

    def __init__(self, two, handle, line, name="task"):
        self.other, given = os.openpty()
        words = two.worker._in(
            *two.worker._ctr("task", "exec", "-t", "--exec-id", name, handle, "sh", "-c", line)
        )
        # ctr wants a terminal; none becomes this test's own.
        two.keep(
            subprocess.Popen(
                words, stdin=given, stdout=given, stderr=given, start_new_session=True
            )
        )
        os.close(given)
        self.pid = two.pid(handle, name)
        until(lambda: parent(self.pid) == "containerd-shim", PATIENCE)
        self.said = b""

    def until(self, text):
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            left = deadline - time.monotonic()
            assert left > 0, self.said
            assert select.select([self.other], [], [], left)[0], self.said
            # Each of two terminals on the way makes an end of a line two letters.
            self.said += os.read(self.other, 4096).replace(b"\r", b"")

    def close(self):
        os.close(self.other)


@pytest.fixture
def terminal(two):
    with contextlib.ExitStack() as stack:

        def start(handle, line="echo begun; sleep 1000; true", name="task"):
            found = Terminal(two, handle, line, name)
            stack.callback(found.close)
            found.until(b"begun")
            return found

        yield start


def parent(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return pathlib.Path(f"/proc/{stat.rpartition(')')[2].split()[1]}/comm").read_text().strip()


def piped(two, handle, line="sleep 1000; true", name="task"):
    """A step with pipes; what comes of them."""
    step = two.worker.begin("task", "exec", "--exec-id", name, handle, "sh", "-c", line)
    pid = two.pid(handle, name)
    until(lambda: parent(pid) == "containerd-shim", PATIENCE)
    return two.keep(step), pid


def test_a_line_reaches_who_reads_a_tasks_terminal(two, terminal):
    two.create("t1")
    task = terminal("t1")
    tell(two, "t1")
    task.until(LINE)
    assert alive(task.pid)


def as_the_service(*argv):
    """Run a program with no more rights than the watch's unit has."""
    path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
    return subprocess.run(
        with_rights_of_the_watch(*argv),
        env=path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
        timeout=PATIENCE,
    ).stdout  # fmt: skip


SERVICE = """
import sys
from gpu_runtime.holder_usage import Host
from gpu_agent.reporting.joblog import step_stderr as step_log
from gpu_agent.model.observations import Holding
lease = Holding(sys.argv[1], sys.argv[2], (), 0.0, in_use=True)
print(step_log.say(lease, b"[gpu-ci] GPU 0 failed\\n")[0].name)
Host().end_steps(*sys.argv[1:3])
"""


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs util-linux's setpriv")
@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_the_rights_of_its_service_are_enough(two, terminal, kind):
    two.create("t1")
    bundle = str(two.worker.folder_of("t1"))
    if kind == "terminal":
        task = terminal("t1")
        pid = task.pid
    else:
        step, pid = piped(two, "t1")
    assert as_the_service(sys.executable, "-c", SERVICE, "t1", bundle) == "SAID\n"
    until(lambda: not alive(pid), PATIENCE)
    if kind == "terminal":
        task.until(LINE)
    else:
        assert LINE.decode() in step.communicate(timeout=PATIENCE)[0]


def test_a_line_reaches_who_reads_a_steps_pipe_and_its_end_is_seen(two):
    """Whoever had the pipe open for longer would keep the step's end from its reader."""
    two.create("t1")
    step, pid = piped(two, "t1")
    assert say(two, "t1") is Outcome.SAID
    os.kill(pid, 9)
    said, _ = step.communicate(timeout=PATIENCE)
    assert LINE.decode() in said


# More of them without a container: test_joblog_step_stderr.py.
REDIRECTED = ("2>&-", "2>/tmp/log", "2>&1")


def test_a_step_that_made_its_own_stderr_is_left_alone(two):
    two.create("t1")
    for number, redirected in enumerate(REDIRECTED):
        line = f"exec {redirected}; echo begun; sleep 1000; true"
        step, pid = piped(two, "t1", line, f"step-{number}")
        assert step.stdout.readline() == "begun\n"
        assert say(two, "t1") is Outcome.NEVER, redirected
        assert alive(pid), redirected
        os.kill(pid, 9)
        said, _ = step.communicate(timeout=PATIENCE)
        assert LINE.decode() not in said, redirected
        until(lambda: say(two, "t1") is Outcome.NOBODY, PATIENCE)


def test_nobody_is_told_where_no_step_runs(two, terminal):
    two.create("t1")
    assert say(two, "t1") is Outcome.NOBODY, "it has not begun"
    task = terminal("t1")
    session = terminal("t1", name=SESSION)
    os.kill(task.pid, 9)
    until(lambda: not alive(task.pid), PATIENCE)
    assert say(two, "t1") is Outcome.NOBODY, "a session is no step"
    assert alive(session.pid)
    assert LINE not in session.said
    two.worker.remove("t1")
    assert say(two, "t1") is Outcome.NOBODY, "there is no such container"


def test_a_number_that_is_another_processs_by_now_is_not_told(two):
    for handle in ("t1", "t2"):
        two.create(handle)
    step, pid = piped(two, "t1")
    path = two.worker.folder_of("t2") / "task.pid"
    path.write_text(str(pid))
    assert say(two, "t2") is Outcome.NOBODY
    path.write_text(str(os.getpid()))
    assert say(two, "t2") is Outcome.NOBODY
    path.write_text("../1")
    assert say(two, "t2") is Outcome.NOBODY
    path.unlink()
    os.kill(pid, 9)
    assert LINE.decode() not in step.communicate(timeout=PATIENCE)[0]


def test_the_steps_of_one_container_end_and_nothing_else(two, terminal):
    for handle in ("t1", "t2"):
        two.create(handle)
    task = terminal("t1", "echo begun; setsid sleep 1000 & sleep 1000; true")
    child = until_child(two, "t1", task.pid)
    session = terminal("t1", name=SESSION)
    _, other = piped(two, "t2")
    lease = holding(two, "t1")
    Host().end_steps("t1", lease.bundle)
    until(lambda: not alive(task.pid) and not alive(child), PATIENCE)
    assert all(map(alive, (session.pid, other, two.pid("t1", "init"))))
    # The bundle of one container with the name of another.
    Host().end_steps("t1", str(two.worker.folder_of("t2")))
    assert alive(other)


def test_a_job_reads_what_it_got_and_that_its_gpu_died(two, terminal, tmp_path):
    two.create("t1")
    lease = holding(two, "t1")
    cards = tuple(
        Card(uuid, index, f"0000:0{index}:00.0", "A100", (uuid,))
        for index, uuid in enumerate(UUIDS)
    )
    (mine,) = [card for card in cards if card.uuid in lease.devices]
    task = terminal("t1")
    log = JobLog("enabled", "warn", notes=tmp_path / "notes.json")

    def turn(*decisions):
        now = Host.now()
        log.turn(Moment(now, time.time(), cards, holdings=(lease,), driver="580.95"), decisions)

    def until_said(text):
        deadline = time.monotonic() + PATIENCE
        while text not in task.said:
            assert time.monotonic() < deadline, task.said
            turn()
            if select.select([task.other], [], [], 0.2)[0]:
                task.said += os.read(task.other, 4096).replace(b"\r", b"")

    place = " (GPU 0 in this task)" if mine.index else ""
    until_said(f"[gpu-ci] GPU {mine.index}{place}: A100, driver 580.95; waited 0 s\n".encode())
    turn(Tell(mine.uuid, "xid", "Xid 79, it is lost", hardware=True, xid=79))
    until_said(b"hardware, not your change. Run the build again\n")
    assert task.said.count(b"[gpu-ci]") == 2
    assert alive(task.pid)


def test_a_lease_tells_for_how_long_it_was_waited_for(two):
    for handle in ("t1", "t2"):
        two.create(handle)
        piped(two, handle)
    waiting = two.wait("t3")
    time.sleep(1.5)
    os.kill(two.pid("t1"), 9)
    until(lambda: two.gpus("t3"), PATIENCE)
    assert 1 <= two.worker.leases()["holders"]["t3"]["waited"] < PATIENCE
    assert two.worker.leases()["holders"]["t2"]["waited"] >= 0
    waiting.communicate(timeout=PATIENCE)
