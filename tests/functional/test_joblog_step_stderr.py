# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A line reaches the stderr that a process was given, and nothing else: real pipes, terminals.

Here this test is what a shim is: it has given the process its stderr and reads it. What a task
does to its stderr before it sleeps is the attack.
"""

import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import select
import struct
import subprocess
import sys
import threading
import time

import pytest

from gpu_agent.model.observations import Holding
from gpu_agent.reporting.joblog import process_stderr as terminals
from gpu_agent.reporting.joblog import step_stderr as step_log
from gpu_agent.reporting.joblog.step_stderr import Outcome, Pen

LINE = b"[gpu-ci] GPU 3 failed\n"
# In seconds, for what a busy machine may take: it comes in milliseconds, and a write that waits
# for somebody takes for ever.
PATIENCE = 60

SLEEP = """
print("ready", file=ready, flush=True)
time.sleep(1000)
"""
BEGIN = """
import fcntl, os, pathlib, pty, socket, sys, tempfile, termios, threading, time
ready = os.fdopen(int(sys.argv[1]), "w")
there = pathlib.Path(sys.argv[2])
"""


def open_terminal() -> tuple[int, int]:
    """Both ends of a terminal, opened as runc does in a container: there /dev/ptmx is a link."""
    other = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(other, 0x40045431, struct.pack("i", 0))  # TIOCSPTLCK
    number = struct.unpack("i", fcntl.ioctl(other, 0x80045430, b"\0" * 4))[0]  # TIOCGPTN
    return other, os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


class Step:
    """A process and both ends of what it was given.

    Attributes:
        pid: its id.
        other: the end that this test reads.
    """

    def __init__(self, folder: pathlib.Path, script: str, *, terminal: bool) -> None:
        if terminal:
            self.other, given = open_terminal()
        else:
            self.other, given = os.pipe()
        told, tell = os.pipe()
        argv = [sys.executable, "-c", BEGIN + script + SLEEP, str(tell), str(folder)]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=given if terminal else subprocess.DEVNULL,
            stderr=given,
            pass_fds=(tell,),
            start_new_session=True,
        )
        self.pid = self.process.pid
        os.close(given)
        os.close(tell)
        with os.fdopen(told) as file:
            said = file.readline()
        if said != "ready\n":
            said = self.said(1)
            self.close()
            raise AssertionError(said)

    def say(self, text: bytes = LINE, *, pid: int | None = None) -> int:
        """Write to it; a write that waits for somebody fails."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(terminals.write, pid or self.pid, os.getpid(), text, lambda: True)
            try:
                return call.result(PATIENCE)
            except concurrent.futures.TimeoutError:
                self.process.kill()  # then it waits no longer
                raise

    def said(self, seconds: float = PATIENCE) -> bytes:
        """What came out within this time; it returns as soon as a line did."""
        found, deadline = b"", time.monotonic() + seconds
        while not found.endswith(b"\n"):
            left = max(0, deadline - time.monotonic())
            if not select.select([self.other], [], [], left)[0]:
                break
            try:
                part = os.read(self.other, 1 << 16)
            except OSError:  # EIO: the terminal was closed by all who had it
                break
            if not part:
                break
            found += part
        return found.replace(b"\r\n", b"\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.other)


@pytest.fixture
def step(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(script: str = "", *, terminal: bool = False) -> Step:
            started = Step(tmp_path, script, terminal=terminal)
            stack.callback(started.close)
            return started

        yield start


KINDS = pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])


@KINDS
def test_a_line_comes_out_where_the_step_was_given_its_stderr(step, terminal):
    one = step(terminal=terminal)
    assert one.say() == len(LINE)
    assert one.said() == LINE
    assert one.process.poll() is None


@KINDS
def test_it_makes_no_terminal_this_programs_own(step, terminal):
    """With one, what a job does to it would be signals to this program."""
    one = step(terminal=terminal)
    script = f"""
import sys
from gpu_agent.reporting.joblog import process_stderr as terminals
assert terminals.write({one.pid}, {os.getpid()}, b"x\\n", lambda: True) == 2
try:
    open("/dev/tty")
except OSError:
    sys.exit(0)
sys.exit(1)
"""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=path, start_new_session=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert one.said() == b"x\n"


ATTACKS = {
    "closed": "os.close(2)",
    "a file": "os.dup2(os.open(there / 'f', os.O_RDWR | os.O_CREAT), 2)",
    "a file for reading": "(there / 'f').touch(); os.dup2(os.open(there / 'f', os.O_RDONLY), 2)",
    "/dev/null": "os.dup2(os.open('/dev/null', os.O_RDWR), 2)",
    "a device": "os.dup2(os.open('/dev/zero', os.O_RDWR), 2)",
    "a folder": "os.dup2(os.open('/', os.O_RDONLY), 2)",
    "a socket": "a, b = socket.socketpair(); os.dup2(a.fileno(), 2)",
    "a pipe of its own": "r, w = os.pipe(); os.dup2(w, 2)",
    "a pipe that nobody reads": "r, w = os.pipe(); os.dup2(w, 2); os.close(r)",
    "the reading end": "r, w = os.pipe(); os.dup2(r, 2)",
    "a FIFO": "os.mkfifo(there / 'p'); os.dup2(os.open(there / 'p', os.O_RDWR), 2)",
    "a FIFO that nobody reads": """
os.mkfifo(there / "p")
r = os.open(there / "p", os.O_RDONLY | os.O_NONBLOCK)
os.dup2(os.open(there / "p", os.O_WRONLY), 2)
os.close(r)
""",
    "its stdout": "os.dup2(2, 1)",
    "a terminal of its own": "m, s = pty.openpty(); os.dup2(s, 2)",
    "its own terminal's other end": "m, s = pty.openpty(); os.dup2(m, 2)",
    "a memory file": "os.dup2(os.memfd_create('pipe:[1]'), 2)",
    "an event": "import select; e = select.epoll(); os.dup2(e.fileno(), 2)",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_step_made_itself_is_left_alone(step, tmp_path, attack):
    terminal = "terminal" in attack
    one = step(ATTACKS[attack], terminal=terminal)
    with pytest.raises(terminals.NotTheirsError):
        one.say()
    assert one.said(0.1) == b""
    assert one.process.poll() is None, "it was disturbed"
    assert not [path for path in tmp_path.iterdir() if path.is_file() and path.stat().st_size]


def test_a_named_pipe_is_left_alone_though_the_reader_has_it_open(step, tmp_path):
    """A name of the host's in a process's stderr would be whatever lies there by then."""
    one = step("os.mkfifo(there / 'p'); os.dup2(os.open(there / 'p', os.O_RDWR), 2)")
    reader = os.open(tmp_path / "p", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(terminals.NotTheirsError, match="own"):
            one.say()
    finally:
        os.close(reader)


def test_a_pipe_that_the_reader_itself_writes_to_is_left_alone(step):
    """The other end counts, not that the reader has the thing open."""
    ours, theirs = os.pipe()
    one = step()
    try:
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(["sleep", "1000"], stdin=ours, stderr=theirs)
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.kill)
            os.close(ours)
            with pytest.raises(terminals.NotTheirsError, match="own"):
                one.say(pid=process.pid)
    finally:
        os.close(theirs)


def fill(one: Step) -> None:
    """Have no room left in what the step was given.

    The kernel moves what a terminal was given to its reader's buffer a moment later, which makes
    room again. So this goes on until there was none for a while.
    """
    descriptor = os.open(
        f"/proc/{one.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    full_since = time.monotonic()
    while time.monotonic() - full_since < 0.3:
        try:
            os.write(descriptor, b"x")
            full_since = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    os.close(descriptor)


def test_a_step_may_give_its_process_any_name(step):
    one = step("pathlib.Path('/proc/self/comm').write_bytes(bytes([255]))\n")
    assert step_log._parent(one.pid) == os.getpid()


@KINDS
def test_one_that_nobody_reads_is_not_waited_for(step, terminal):
    one = step(terminal=terminal)
    fill(one)
    assert one.say() == 0
    left, found, deadline = LINE, b"", time.monotonic() + PATIENCE
    while left:
        assert time.monotonic() < deadline, "there is room again, and nobody finds it"
        found += one.said(0.05)
        left = left[one.say(left) :]
    while not found.endswith(LINE):
        assert time.monotonic() < deadline, found[-100:]
        found += one.said(0.05)


def test_a_line_goes_into_a_nearly_full_pipe_whole_or_not_at_all(step):
    one = step()
    fill(one)
    size = fcntl.fcntl(one.other, fcntl.F_GETPIPE_SZ)
    assert len(os.read(one.other, size)) <= size
    descriptor = os.open(f"/proc/{one.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    whole = b"y" * 4095 + b"\n"
    for _ in range(size // 4096):
        os.write(descriptor, whole)
    os.close(descriptor)
    assert one.say(whole) == 0
    os.read(one.other, 4095)
    assert one.say(whole) == 0, "a part of it would have fitted"


def test_a_terminal_that_its_user_has_stopped_is_not_waited_for(step):
    one = step("termios.tcflow(2, termios.TCOOFF)", terminal=True)
    assert one.say() == 0


def test_a_terminal_that_its_user_wants_alone_is_left_to_it(step):
    """root may open it nevertheless; what matters is that nobody waits."""
    one = step("import fcntl; fcntl.ioctl(2, termios.TIOCEXCL)", terminal=True)
    with contextlib.suppress(terminals.NotTheirsError):
        assert one.say() == len(LINE)
    assert one.process.poll() is None


def test_a_process_that_has_ended_gets_nothing(step):
    one = step()
    one.process.kill()
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(terminals.NotTheirsError):  # dead and not yet waited for
        one.say()
    one.process.wait(PATIENCE)
    with pytest.raises(terminals.NotTheirsError):
        one.say()


def test_another_process_with_its_number_gets_nothing(step):
    one = step()
    with pytest.raises(terminals.NotTheirsError, match="ended"):
        terminals.write(one.pid, os.getpid(), LINE, lambda: False)
    assert one.said(0.1) == b""


def test_a_reader_that_is_gone_reads_nothing(step):
    one = step()
    gone = subprocess.Popen(["true"])
    gone.wait(PATIENCE)
    with pytest.raises(terminals.NotTheirsError):
        terminals.write(one.pid, gone.pid, LINE, lambda: True)


def test_a_process_that_changes_its_stderr_all_the_time_gets_whole_lines_or_nothing(
    step, tmp_path
):
    script = """
given, own = os.dup(2), os.open(there / "own", os.O_RDWR | os.O_CREAT)
def change():
    while True:
        os.dup2(own, 2); os.dup2(given, 2)
threading.Thread(target=change, daemon=True).start()
"""
    one = step(script)
    written = 0
    for _ in range(300):
        with contextlib.suppress(terminals.NotTheirsError):
            written += one.say()
    found = b""
    while part := one.said(0.1):
        found += part
    assert len(found) == written
    assert set(found.splitlines(keepends=True)) <= {LINE}
    assert (tmp_path / "own").read_bytes() == b""


# A file system of the job's own that answers nothing: whoever looks at a file in it waits.
MUTE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
place = there / "mute"
place.mkdir()
server = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # private, all below
if libc.mount(b"mute", bytes(place), b"fuse", 0, options):
    raise SystemExit(f"no FUSE here: {ctypes.get_errno()}")
os.dup2(os.open(place, os.O_PATH), 2)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not pathlib.Path("/dev/fuse").exists(), reason="FUSE needs root"
)
def test_a_file_system_that_never_answers_is_not_asked(step):
    """Else as many jobs as there may be writers would end the lines of all."""
    try:
        mute = step(MUTE)
    except AssertionError as error:
        if "no FUSE here" in str(error):
            pytest.skip(str(error))
        raise
    came: list[object] = []

    def say() -> None:
        try:
            came.append(mute.say(LINE))
        except terminals.NotTheirsError as error:
            came.append(str(error))

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert came == ["it is neither a pipe nor a terminal"]


def test_a_write_that_hangs_holds_up_nothing_but_that_jobs_lines(step):
    well, goes_on = step(), threading.Event()

    def say(holding, text):
        if holding.container == "well":
            well.say(text)
        else:
            goes_on.wait(PATIENCE)
        return Outcome.SAID, b""

    pen = Pen(say)
    hang, other = (Holding(name, "/b", (), 0, in_use=True) for name in ("mute", "well"))
    pen.hand(hang, LINE)
    pen.hand(other, LINE)
    assert well.said() == LINE
    came: dict[str, object] = {}
    deadline = time.monotonic() + PATIENCE
    while "well" not in came:
        assert time.monotonic() < deadline
        pen.settle(0.1)
        came |= pen.take()
    assert set(came) == {"well"}
    assert pen.is_free("well")
    assert not pen.is_free("mute")
    goes_on.set()
    pen.settle(PATIENCE)
    assert set(pen.take()) == {"mute"}
    assert pen.is_free("mute")
