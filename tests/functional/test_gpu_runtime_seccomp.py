# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Under real runc no process of a task with a GPU stops for its tracer at its exit, or has a ring.

What would happen without the rule is not tried: two such processes that trace each other can't be
killed any more, and stay on the machine until it is booted anew.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from gpu_runtime.seccomp import of_a_holder, unconfined

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runc needs root here"),
    pytest.mark.skipif(not shutil.which("runc"), reason="runc is not installed"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
]
TRACER = r"""
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "ok");
    fflush(stdout);
}

static int child(void) {
    int pid = fork();
    if (!pid) for (;;) pause();
    return pid;
}

int main(void) {
    int pid = child();
    say("seize for exit stops", ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT));
    say("seize for more", ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT | PTRACE_O_TRACEFORK));
    say("seize", ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEFORK));
    say("interrupt", ptrace(PTRACE_INTERRUPT, pid, 0, 0));
    waitpid(pid, 0, __WALL);
    say("exit stops", ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT));
    say("exit stops by the old call", ptrace(21, pid, 0, PTRACE_O_TRACEEXIT));
    say("options", ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC));
    say("options by the old call", ptrace(21, pid, 0, PTRACE_O_TRACECLONE));
    say("detach", ptrace(PTRACE_DETACH, pid, 0, 0));
    say("attach", ptrace(PTRACE_ATTACH, pid, 0, 0));
    waitpid(pid, 0, __WALL);
    kill(pid, SIGKILL);
    waitpid(pid, 0, __WALL);
    say("io_uring", syscall(425, 1, 0));
    pid = fork();
    if (!pid) {
        say("be traced", ptrace(PTRACE_TRACEME, 0, 0, 0));
        _exit(0);
    }
    waitpid(pid, 0, __WALL);
    return 0;
}
"""
FORBIDDEN = {
    *("seize for exit stops", "seize for more", "exit stops", "exit stops by the old call"),
    "io_uring",
}
OTHERS = {
    *("seize", "interrupt", "options", "options by the old call", "detach", "attach"),
    "be traced",
}
ARCHITECTURES = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32", "SCMP_ARCH_AARCH64"]
# What a C program needs besides, of Concourse's list (8.3.0 worker/runtime/spec/seccomp.go).
NEEDED = (
    "read write writev exit exit_group execve brk mmap munmap mprotect fstat newfstatat "
    "arch_prctl set_tid_address set_robust_list rseq prlimit64 getrandom readlink readlinkat "
    "clone fork wait4 pause ppoll kill tgkill rt_sigaction rt_sigprocmask rt_sigreturn "
    "sigaltstack futex ioctl access uname getpid gettid capget capset prctl chdir fchdir "
    "setuid setgid setgroups close fcntl openat open fstatfs statfs getdents64 lseek umask "
    "getuid geteuid getgid getegid madvise faccessat2 statx sched_getaffinity epoll_pwait "
    "epoll_ctl epoll_create1 nanosleep sched_yield getppid stat dup3"
)
PROFILES = {
    "a list of what is allowed": {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ARCHITECTURES,
        "syscalls": [
            {"names": [*NEEDED.split(), "ptrace", "io_uring_setup"], "action": "SCMP_ACT_ALLOW"}
        ],
    },
    "a list of what is not": {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mount"], "action": "SCMP_ACT_ERRNO"}],
    },
    "none, as seccomp=unconfined has it": unconfined(os.uname().machine),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    root = folder / "rootfs"
    root.mkdir()
    (folder / "tracer.c").write_text(TRACER)
    command = ["gcc", "-static", "-o", root / "tracer", folder / "tracer.c"]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip("gcc can link nothing static here")
    return folder


def answers(bundle: pathlib.Path, profile: dict, name: str) -> dict[str, str]:
    """What the kernel says to each request in a container with this profile."""
    (bundle / "config.json").unlink(missing_ok=True)
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"].update(terminal=False, args=["/tracer"])
    config["linux"].pop("resources")
    config["linux"]["seccomp"] = profile
    (bundle / "config.json").write_text(json.dumps(config))
    state = ["runc", "--root", bundle / "state"]
    done = subprocess.run(
        [*state, "run", name],
        cwd=bundle,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", PROFILES)
def test_exit_stops_and_io_uring_alone_are_refused(bundle, name):
    profile = of_a_holder(PROFILES[name])
    expected = dict.fromkeys(FORBIDDEN, "Operation not permitted") | dict.fromkeys(OTHERS, "ok")
    assert answers(bundle, profile, "gpu-ci-tracer") == expected
    assert of_a_holder(profile) == profile


def test_without_the_rule_they_are_granted(bundle):
    """Else the test above would prove nothing; one that traces alone can be killed."""
    found = answers(bundle, PROFILES["a list of what is allowed"], "gpu-ci-tracer")
    assert found["seize for exit stops"] == "ok"
    assert found["io_uring"] == "Bad address"
    assert (found["exit stops"], found["exit stops by the old call"]) == ("ok", "ok")
