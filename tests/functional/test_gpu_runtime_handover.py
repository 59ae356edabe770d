# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Who has a device open when it goes to the next holder: real processes in real control groups.

/dev/full stands for the GPU's node. A container is a process with mounts of its own in a control
group of a container's name.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import pytest

from gpu_runtime import handover
from gpu_runtime import lease_manager as broker
from gpu_runtime.decision_log import Decision
from gpu_runtime.grant import Grant
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import CONTAINER, JOB, STEP, Holder
from gpu_runtime.policy import Policy
from tests.unit.grants import content
from tests.unit.refusals import refuses
from tests.unit.wrapper_rig import GPUS

NODE = "/dev/full"
HEX = uuid.uuid4().hex * 2
MOUNTS = pathlib.Path("/sys/fs/cgroup/devices")
TOP = MOUNTS if MOUNTS.exists() else pathlib.Path("/sys/fs/cgroup")
SITE = f"gpuci-handover-{os.getpid()}"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(TOP, os.W_OK), reason="control groups need root"
)

BEGIN = """
import ctypes, os, socket, sys, time
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
def mounts_of_its_own():
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # private, all below
"""
SAY = """
print("ready", flush=True)
time.sleep(1000)
"""
# The first thread ends, and another lives on.
HEADLESS = """
import threading
def speak():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(1000)
threading.Thread(target=speak).start()
ctypes.CDLL(None).pthread_exit(None)
"""
# What another one opened by its own mounts, and sent.
RECEIVED = """
here, there = socket.socketpair()
if not os.fork():
    mounts_of_its_own()
    socket.send_fds(there, [b"x"], [os.open("/dev/full", os.O_RDWR)])
    os._exit(0)
os.wait()
_, descriptors, _, _ = socket.recv_fds(here, 1, 1)
"""
OPENED = 'descriptor = os.open("/dev/full", os.O_RDWR)\n'
CONTAINED = "mounts_of_its_own()\n"
MAPPED = """
map = ctypes.CDLL(None).mmap
map.restype = ctypes.c_void_p
map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_long] * 4]
descriptor = os.open("/dev/zero", os.O_RDWR)
assert map(None, 4096, 1, 2, descriptor, 0) != ctypes.c_void_p(-1).value
os.close(descriptor)
"""


@pytest.fixture
def start():
    """Start a script in a control group of that name below this test's; the process."""
    started, made = [], [TOP / SITE]

    def begin(script, group=""):
        folder = TOP / SITE / group
        for path in (*reversed(folder.parents), folder):
            if not path.exists():
                path.mkdir()
                made.append(path)
        argv = [sys.executable, "-c", BEGIN + script + SAY, str(folder / "cgroup.procs")]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    made[0].mkdir()
    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
    for path in sorted(made, key=str, reverse=True):
        deadline = time.monotonic() + 10
        while path.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                path.rmdir()


def looked(kind=CONTAINER, nodes=(NODE,), leased=()):
    """What a look says of a holder that has ended, and whom it has ended."""
    holder = Holder("/b/ended", ["GPU-0"], [], exclusive=True, since=1)
    holder.kind, holder.nodes = kind, [*nodes]
    holder.cgroup = f"/{SITE}/docker/{'0' * 64}"
    host = Host()
    host.look({"ended": holder}, [*leased])
    return host.looked["ended"], host.intruders


def ended(process):
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(2) == -signal.SIGKILL
    return False


@pytest.mark.parametrize(
    "group",
    [
        f"docker/{HEX}",
        f"machine.slice/machine-libpod_pod_{HEX}.slice/libpod-{HEX}.scope",
        f"teams.slice/teams-vision.slice/docker-{HEX}.scope",
        f"system.slice/train.service/libpod-payload-{HEX}",
        f"kubepods/burstable/pod{uuid.uuid4()}/{HEX}",
        f"garden/{uuid.uuid4()}",
        "gpu.slice/gpu-run-0123456789ab.scope",
    ],
    ids=["docker", "pod", "parent", "quadlet", "kubernetes", "concourse", "gpu-run"],
)
@pytest.mark.parametrize("kind", [STEP, CONTAINER])
def test_a_container_that_was_sent_it_ends_as_a_whole_wherever_it_is(start, group, kind):
    intruder = start(CONTAINED + RECEIVED, f"{group}/below")
    beside, other = start(CONTAINED, group), start(CONTAINED, "docker/" + "1" * 64)
    said, intruders = looked(kind)
    assert said == ""
    assert intruders == [group.rpartition("/")[2]]
    assert ended(intruder)
    assert ended(beside)
    assert other.poll() is None


@pytest.mark.parametrize("ending", ["", HEADLESS], ids=["", "first thread ended"])
def test_a_container_that_was_given_it_by_its_engine_goes_on(start, ending):
    """As a monitor has every GPU open, such as dcgm-exporter by the runtime `nvidia`."""
    monitor = start(CONTAINED + OPENED + ending, f"docker/{HEX}")
    assert looked() == ("", [])
    assert monitor.poll() is None


PLACE = 'place = os.open("/dev/full", os.O_PATH)\n'
FORGET = """
import threading
threading.Timer(1, os.close, [place]).start()
"""


def test_a_container_that_is_being_made_goes_on(start):
    """In a user namespace runc knows for a moment where the sources of bind mounts are."""
    task = start(CONTAINED + PLACE + FORGET, f"garden/{uuid.uuid4()}")
    assert looked(STEP) == ("", [])
    assert task.poll() is None


def test_who_keeps_a_place_by_which_to_open_it_does_not(start):
    task = start(CONTAINED + PLACE, f"garden/{uuid.uuid4()}")
    assert looked(STEP)[0] == ""
    assert ended(task)


def test_who_gets_devices_by_leases_alone_does_not(start):
    task = start(CONTAINED + OPENED, f"garden/{uuid.uuid4()}")
    leased = start(CONTAINED + OPENED, f"docker/{HEX}")
    assert looked(leased=[f"/{SITE}/docker/{HEX}"])[0] == ""
    assert ended(task)
    assert ended(leased)


def test_a_program_of_the_machine_goes_on_and_so_does_the_gpu(start):
    """Services that watch GPUs, and people, may open a GPU at any time: they need no lease."""
    service = start(OPENED, "system.slice/nvidia-persistenced.service")
    assert looked() == ("", [])
    assert service.poll() is None


def test_a_program_that_another_one_of_the_machine_opened_it_for_goes_on(start):
    """As systemd-logind does, with mounts of its own, for a display server."""
    script = RECEIVED.replace("os._exit(0)", "os.write(there.fileno(), b'y'); time.sleep(1000)")
    server = start(script.replace("os.wait()", ""), "user.slice")
    assert looked() == ("", [])
    assert server.poll() is None


def test_a_program_of_the_machine_that_was_sent_it_keeps_the_gpu_from_others(start):
    colleague = start(RECEIVED, "user.slice")
    said, intruders = looked()
    assert f"pid {colleague.pid} (python" in said
    assert "a process outside containers, has it open" in said
    assert intruders == []
    assert colleague.poll() is None
    assert looked(nodes=["/dev/null-not-there"]) == ("", [])


# What str.splitlines takes for ends of lines, and a user may write into names.
ENDS = "\r \x0c \x1e \x85 \u2028"


def test_a_program_in_a_group_of_any_name_is_looked_at(start):
    """A user's service manager names the control groups of its own at will."""
    colleague = start(RECEIVED, f"user.slice/a{ENDS}b")
    assert f"pid {colleague.pid} (python" in looked()[0]


NAMED_MOUNT = f"""
import tempfile
place = os.path.join(tempfile.mkdtemp(), {ENDS!r})
os.mkdir(place)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"none", place.encode(), b"tmpfs", 0, None) == 0
"""


def test_a_mount_of_any_name_keeps_no_gpu_from_others(start):
    """FUSE and user namespaces let every user mount on a directory of a name of its own."""
    user = start(CONTAINED + NAMED_MOUNT, "user.slice")
    script = RECEIVED.replace("os._exit(0)", "os.write(there.fileno(), b'y'); time.sleep(1000)")
    start(script.replace("os.wait()", ""), "user.slice")
    assert looked() == ("", [])
    inside = f"""
import ctypes, os, sys
assert ctypes.CDLL(None).setns(os.open("/proc/{user.pid}/ns/mnt", os.O_RDONLY), 0x20000) == 0
from gpu_runtime import cgroups as groups
print(groups.folder("", "/{SITE}"))
"""
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", inside]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{TOP}/{SITE}\n", "")


def test_a_look_that_ends_without_a_result_keeps_the_gpu_from_others(monkeypatch):
    monkeypatch.setattr(handover.Look, "run", lambda *_: None)
    assert looked()[0] != ""


def test_a_mapping_in_a_container_is_found(start):
    intruder = start(CONTAINED + MAPPED, f"docker/{HEX}")
    assert looked(nodes=["/dev/zero"]) == ("", [f"{HEX}"])
    assert ended(intruder)


def test_a_look_of_a_test_ends_no_container_of_another_one(start):
    """Else the fuzzer's looks for /dev/null would end tasks of each lab on this machine."""
    other = start(CONTAINED + RECEIVED, f"../gpuci-handover-0/garden/{uuid.uuid4()}")
    assert looked(STEP) == ("", [])
    assert other.poll() is None


def test_after_its_time_the_look_ends_in_a_sentence(start, monkeypatch):
    intruder = start(CONTAINED + RECEIVED, f"docker/{HEX}")
    monkeypatch.setattr(handover, "PATIENCE", 0)
    said, intruders = looked()
    assert "did not finish in 0 s" in said
    assert intruders == []
    assert intruder.poll() is None


def test_a_look_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(handover, "PATIENCE", 0)
    monkeypatch.setattr(handover.Look, "run", lambda *_: time.sleep(60))
    began = time.monotonic()
    assert "did not finish in 0 s" in looked()[0]
    assert time.monotonic() - began < 30


ASK = """
import sys, time
from gpu_runtime import handover
from tests.functional import test_gpu_runtime_handover
handover.Look.run = lambda *_: time.sleep(1000)
test_gpu_runtime_handover.ask(test_gpu_runtime_handover.Store(sys.argv[1]), "hangs")
"""


def ask(store, name, device=GPUS[0]["uuid"]):
    """Ask for a GPU by its name, and wait for nobody."""
    policy = Policy(content(wait_timeout=0, gpus=GPUS))
    request = broker.Request(name, "", f"/{SITE}/{name}")
    request.kind, request.named = JOB, [device]
    decision = Decision(name)
    decision.asked = 1
    return broker.acquire(store, Host(), iter(lambda: policy, None), request, decision)


def lease(store, name, device, **changes):
    holder = Holder("", [device], [], exclusive=True, since=1)
    holder.kind, holder.cgroup, holder.execs = JOB, f"/{SITE}/{name}", True
    for key, value in changes.items():
        setattr(holder, key, value)
    policy = Policy(content(gpus=GPUS))
    with store as table:
        table.holders[name] = holder
        granted = [one for one in policy.devices if one.id == device]
        store.put(name, "", Grant(policy, granted, JOB), holder)


def test_while_one_looks_all_others_go_on_and_its_death_leaves_nothing(tmp_path):
    store = Store(str(tmp_path / "leases"))
    one, other = (gpu["uuid"] for gpu in GPUS)
    lease(store, "over", one, nodes=[NODE])
    lease(store, "runs", other, keeper=Host().me())
    with subprocess.Popen(
        [sys.executable, "-c", ASK, store.folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as looks:
        deadline = time.monotonic() + 20
        while not (handing := store.read().holders["over"].handing):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert handing[0][0] == looks.pid
        began = time.monotonic()
        decision = Decision("runs")
        assert broker.resume(store, Host(), lambda: None, decision).gpus == [other]
        with refuses("wait-timeout"):
            ask(store, "second")
        decision = Decision("over")
        with refuses("gpu-given-back"):
            broker.resume(store, Host(), lambda: None, decision)
        assert time.monotonic() - began < 5, "nobody waits for the look"
        looks.kill()
    assert ask(store, "third").ids == [one]
    with store as table:
        assert {*table.holders} == {"runs", "third"}
        assert table.waiters == [] or {one.container for one in table.waiters} == {"hangs"}


def test_what_cannot_go_on_is_refused_in_a_sentence_and_marks_nothing(start, tmp_path):
    colleague = start(RECEIVED, "user.slice")
    store = Store(str(tmp_path / "leases"))
    one = GPUS[0]["uuid"]
    lease(store, "over", one, nodes=[NODE])
    with refuses("handover-failed") as caught:
        ask(store, "next")
    assert f"{one} cannot be reused: pid {colleague.pid} (" in str(caught.value)
    assert store.read().holders["over"].handing is None
    assert ask(store, "other", GPUS[1]["uuid"]).ids == [GPUS[1]["uuid"]]
    colleague.kill()
    colleague.wait(10)
    assert ask(store, "next").ids == [one]
