# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Attackers who want others to have no GPU: by locks, waits, hangs, and forged faults."""

import os
import threading
import time

import pytest

from tests.attacks.attacker import (
    EVIDENCE,
    assert_lost_to,
    assert_refused,
    descriptors,
    image_step,
    step,
)
from tests.attacks.test_kept import LEAVE
from tests.lab import selftest_runs
from tests.lab.leases import waiting
from tests.lab.site import PROBE

FAKEGPU = "/usr/local/lib/fake-gpu/fakegpu"
# An exec or a create that is not done in a minute is over; what is left goes within seconds.
# A minute, and room for a busy machine.
HUNG_SECONDS = 150
PIPES = (
    "mkfifo etc/ld.so.conf",
    "mkfifo etc/ld.so.cache",
    "mkdir -p usr/local/cuda/compat; mkfifo usr/local/cuda/compat/libcuda.so.999.0",
    "mkfifo tmp/p; ln -s /tmp/p etc/ld.so.conf",
    "mkdir e; mkfifo e/ld.so.conf; mv etc/* e; rmdir etc; ln -s e etc",
    "/bin/mischief listen etc/ld.so.conf",
)


@pytest.fixture
def gpus(under_attack):
    return selftest_runs.indexes(under_attack)


def kernel_records(mark: str) -> list[str]:
    """Records of this machine's real kernel log with this in them, as /dev/kmsg has them."""
    found = []
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(descriptor, 8192).decode(errors="replace")
            except BrokenPipeError:  # overwritten meanwhile
                continue
            if mark in record:
                found.append(record.splitlines()[0])
    except BlockingIOError:
        return found
    finally:
        os.close(descriptor)


CRASH = """
cd /tmp
for comm in "NVRM:" "NVRM: Xid (PCI:" "$(printf '\\nNVRM: Xid (')"; do
  name="$(printf 'x{mark}\\nNVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.')"
  cp /bin/mischief "$name"; "./$name" crash "$comm"; rm "$name"
done
"""


def test_a_program_whose_crash_reads_like_a_fault_of_a_gpu(attacker, gpus):
    """Programs with the driver's words as their names and as their files' names crash.

    The kernel writes both to its log. No GPU must go out of use for that.
    """
    mark = f"{time.time_ns():x}"
    attacker.one(CRASH.format(mark=mark))
    records = kernel_records(mark)
    if not records:
        pytest.skip("this kernel logs no crashes: debug.exception-trace")
    attacker.site.machine().enter(
        "/bin/sh", "-c", "cat >>/run/fake-gpu/kmsg", stdin="".join(f"{r}\n" for r in records)
    )
    try:
        seen = selftest_runs.take(attacker.site, gpus)
        assert seen.quarantine == {}, seen.why()
        assert seen.outcomes()["xid", 0] == "passed", seen.why()
    finally:
        attacker.site.sh(f"{FAKEGPU} xid clear")


NAMED = f"""
for name in containerd concourse containerd-shim-runc-v2 runc; do
  for folder in /opt/concourse/current/bin /opt/concourse/x; do
    mkdir -p $folder; cp /bin/mischief $folder/$name
    $folder/$name hold {EVIDENCE}/named {LEAVE}
  done
done
sleep 60
"""


def test_processes_named_as_the_workers_own(attacker, gpus):
    """Programs in a container run under the paths and the names of Concourse's own.

    No check must take them for those, and no GPU must go out of use.
    """
    build = attacker.start(step("one-off", NAMED, "1"))
    attacker.wait_for("named")
    seen = selftest_runs.take(attacker.site, gpus)
    assert seen.quarantine == {}, seen.why()
    red = {key for key, outcome in seen.outcomes().items() if outcome == "failed"}
    assert red == set(), seen.why()
    attacker.site.lab.model.update_status("worker/0")
    attacker.site.lab.settle()
    assert attacker.site.status()[0] == "active"
    assert "succeeded" not in build.output


FULL_DISK = 'mount -t tmpfs -o size=64k tmpfs /var/lib/concourse; exec "$@"'


def test_what_a_job_does_to_itself(attacker, gpus):
    """A job heats its GPU until that slows down, and fills the worker's disk.

    No GPU must go out of use for longer than the job.
    """
    job = attacker.honest.start("job", GPU_COUNT="1")
    job.begun()
    heat = f"{FAKEGPU} set 0 temperature=94 throttle-reasons=0x48"
    around = f"unshare -m /bin/sh -c '{FULL_DISK}' sh"
    try:
        seen = selftest_runs.take(attacker.site, gpus, before=heat, around=around)
        assert seen.quarantine == {}, seen.why()
        assert seen.outcomes()["disk", None] == "failed", seen.why()
    finally:
        attacker.site.sh(f"{FAKEGPU} set 0 temperature= throttle-reasons=")
    assert job.end() == 0
    seen = selftest_runs.take(attacker.site, gpus)
    assert seen.report["outcome"] == "passed", seen.why()


def test_images_with_files_that_hang_who_opens_them(attacker):
    """Images have a pipe or a socket where the runtime's hooks open a file.

    Their tasks must be refused in words, and leave nothing behind that runs.
    """
    jobs = {
        pipe: [image_step("image", pipe), step("use", PROBE, "1", image="image")] for pipe in PIPES
    }
    for pipe, done in attacker.at_once(jobs).items():
        assert (done.ran, done.status, bool(done.refusal)) == (1, 2, True), (pipe, done.output)
    left = attacker.site.sh("pgrep -af 'runc ini[t]|nvidia-c[dt][ik]|ldconfi[g]'; true")
    assert left == "", left


def test_a_start_and_a_process_that_never_come_to_an_end(attacker):
    """A hook opens a pipe that nobody writes to, and a hijack's process is stopped from within.

    The first is a folder of pipes that an input brings; for the second a step leaves a process
    that stops, by SIGSTOP, whatever else starts in its container. Each holds a GPU, and must hold
    it no longer than a minute; nothing of either must run on.
    """
    frozen = attacker.start(step("one-off", f"/bin/mischief freeze {LEAVE} sleep 1", "1"))
    assert frozen.wait() == 0, frozen.output
    hung = attacker.start(
        image_step(
            "image", "mkdir -p etc/pipes; echo 'include /etc/pipes/*' >etc/ld.so.conf;"
            "mkfifo etc/pipes/x.conf",
        ),
        step("use", "sleep 600", "1", image="image"),
    )  # fmt: skip
    time.sleep(2)
    words = ("hijack", "-b", frozen.number, "-s", "one-off", "--", "sh", "-c", "echo in")
    _, output = attacker.site.fly.on_terminal(*words, timeout=4)
    assert "in\r\n" not in output
    hung.line(".*the attack ran", 40)
    begun = time.monotonic()
    done = None
    while done is None or done.status != 0:
        assert time.monotonic() - begun < HUNG_SECONDS, done and done.output
        time.sleep(5)
        done = attacker.one(PROBE, "2")
    assert done.cards == [0, 1], done.output
    assert descriptors(attacker.site) == ""


@pytest.fixture
def hijack_limit(under_attack):
    """How long a hijack may keep its GPUs, in seconds; 30 minutes would take too long."""
    limit = 10
    policy = "/etc/gpu-ci/policy.json"
    under_attack.sh(
        f'sed -i \'s/"hijack_limit": [0-9]*/"hijack_limit": {limit}/\' {policy};'
        f"grep '\"hijack_limit\": {limit}\\b' {policy}"
    )
    yield limit
    under_attack.lab.model.update_status("worker/0")
    under_attack.lab.settle()


def test_a_session_that_stays_on_its_gpus(attacker, hijack_limit):
    """A step ends, and a hijack of its container stays there for good, on both GPUs.

    It must lose them to who waits once the limit of hijacks is over, and not sooner.
    """
    build = attacker.start(step("one-off", "echo over $(cut -d' ' -f1 /proc/uptime)", "2"))
    assert build.wait() == 0, build.output
    over = float(build.line(r"over (\d+\.\d+)")[1])
    words = ("hijack", "-b", build.number, "-s", "one-off", "--")
    hold = ("/bin/mischief", "hold", f"{EVIDENCE}/session")
    session = threading.Thread(
        target=attacker.site.fly.on_terminal, args=(*words, *hold), kwargs={"timeout": 60}
    )
    session.start()
    attacker.wait_for("session")
    assert_lost_to(attacker, "session")
    kept = attacker.noted("session")[-1][0] - over
    assert hijack_limit - 1 < kept < hijack_limit + 5
    session.join()


def test_processes_that_hold_each_other_at_their_exit(attacker):
    """Two processes that trace each other with PTRACE_O_TRACEEXIT can't be killed by anybody.

    That option must be refused to a task, in each way to ask for it; debuggers go on to work.
    """
    done = attacker.one("/bin/mischief trace", "1")
    answers = dict(line.split(": ", 1) for line in done.lines if ": " in line)
    for way in ("seize", "seize, more options", "seize, 32 bits", "options", "options, 32 bits"):
        assert answers[way] == "EPERM", done.output
    # 21 is PTRACE_OLDSETOPTIONS on other architectures; on this one there is no such request.
    assert answers["options, old number"] != "ok", done.output
    for way in ("seize plain", "attach", "options of debuggers", "detach"):
        assert answers[way] == "ok", done.output


def test_small_wishes_without_end_before_a_large_one(attacker):
    """Three streams of tasks that each want one GPU for a moment go on without end.

    An honest task that wants two must have them after 8 that overtake it, or 30 s.
    """
    over = threading.Event()

    def stream() -> None:
        while not over.is_set():
            attacker.one("sleep 1.5", "1")

    streams = [threading.Thread(target=stream) for _ in range(3)]
    for each in streams:
        each.start()
    try:
        time.sleep(2)
        asked = time.monotonic()
        honest = attacker.honest.start("large", GPU_COUNT="2")
        honest.begun()
        assert time.monotonic() - asked < 90
        assert honest.cards() == [0, 1]
        assert honest.end() == 0
    finally:
        over.set()
        for each in streams:
            each.join()


def test_a_large_wish_that_is_aborted_before_a_small_one(attacker):
    """A task that wants all GPUs waits, and its build is aborted; nobody tells the worker of it.

    It must not keep them for longer than a start may take, and no place among those who wait.
    """
    holder = attacker.honest.start("holder", GPU_COUNT="1")
    holder.begun()
    build = attacker.start(step("one-off", "sleep 600", "all"))
    waiting(attacker.site, 1)
    attacker.site.fly.run("abort-build", "-b", build.number)
    asked = time.monotonic()
    assert holder.end() == 0
    honest = attacker.honest.start("small", GPU_COUNT="1")
    honest.build.line(r"up \d+", 120)
    assert time.monotonic() - asked < 150
    assert honest.end() == 0


REACH = """
find / -xdev -path '*gpu-ci*' ! -name .gpu-ci-task-root 2>/dev/null | sed 's/^/found /'
grep -E 'gpu-ci|/run/containerd|leases' /proc/self/mountinfo | sed 's/^/mounted /'
for file in /run/gpu-ci/leases/leases.json /proc/sys/kernel/core_pattern \
    /sys/fs/cgroup/devices/devices.allow /proc/sysrq-trigger \
    /sys/fs/cgroup/devices/cgroup.procs /proc/sys/kernel/yama/ptrace_scope; do
  (echo $$ >$file) 2>/dev/null && echo "wrote $file"
done
mount -t proc none /mnt 2>/dev/null && echo mounted proc
echo done
"""


def test_the_wrappers_own_files_and_locks(attacker):
    """Tasks with and without a GPU look for the leases, their lock and the kernel's switches.

    They must neither see nor write any of them.
    """
    for done in attacker.at_once({n: [step("one-off", REACH, n)] for n in "01"}).values():
        assert "done" in done.lines
        reached = ("found ", "mounted ", "wrote ")
        assert [line for line in done.lines if line.startswith(reached)] == []


def test_a_full_run(attacker):
    """So many failed builds with long params stay that /run has no room left.

    Who has a GPU keeps it, no task runs without one, and with room again all is well.
    """
    site = attacker.site
    first = attacker.honest.start("first", GPU_COUNT="1")
    first.begun()
    site.sh(
        "mount -o remount,size=$(du -sk /run | cut -f1)k /run 2>&-; cat /dev/zero >/run/full; true"
    )
    try:
        done = attacker.one(PROBE, "1")
        assert (done.ran, done.status) == (0, 2) or done.cards, done.output
        first.answer()
    finally:
        site.sh("rm -f /run/full; mount -o remount,size=20% /run")
    assert first.end() == 0, first.build.output


def test_signals_to_all_that_there_is(attacker):
    """A step kills and stops every process that it can name, again and again.

    Another task must not notice.
    """
    other = attacker.honest.start("other", GPU_COUNT="1")
    other.begun()
    attacker.one(
        "kill -9 -1; for p in $(seq 2 5000); do kill -9 $p; done 2>/dev/null; kill -STOP 1; true",
        "1",
    )
    other.answer()
    assert other.end() == 0, other.build.output


def test_a_count_beyond_all(attacker):
    """Tasks ask for more GPUs than there are, again and again.

    Each must be refused at once, in words.
    """
    begun = time.monotonic()
    for count in ("3", "1000000", "9" * 20):
        assert_refused(attacker.one("true", count))
    assert time.monotonic() - begun < 90  # To wait in vain would take 240.
