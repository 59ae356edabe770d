# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A seccomp profile for who has a GPU: no stop for a tracer on the way out, no io_uring. Pure.

Two processes that trace each other and are to stop at their exit (PTRACE_O_TRACEEXIT) wait for
each other for ever, whatever SIGKILLs come, so what they hold never comes free. That option alone
is taken away, which is EPERM; to trace without it works as before (linux/ptrace.h and
asm/ptrace-abi.h of Linux 6.18). gdb does without it; strace can't, and fails.

A file that is registered with an io_uring is in no list of descriptors, and the kernel tells
others no more of it than its path. So io_uring is refused, as Concourse's own profile has it.
"""

from __future__ import annotations

from gpu_runtime.json_shape import items, table

_RINGS = ("io_uring_setup", "io_uring_enter", "io_uring_register")

_CALL = "ptrace"
_TRACE_EXIT = 0x40  # a bit of the options, which are the argument `data`
_REQUEST, _DATA = 0, 3  # positions of arguments

# The requests that set options: PTRACE_OLDSETOPTIONS, PTRACE_SETOPTIONS, PTRACE_SEIZE.
_SETTING = (21, 0x4200, 0x4206)
# All others up to 63 and from 0x4200 to 0x421f, which are more than there are: the first of so
# many that differ in their lowest bits alone. A rule can't have two conditions on one
# argument (runc libcontainer/seccomp), and what only looks greater than one of the above may be
# that one to the kernel: programs of 32 bits on 64 (x32) pass 64, of which it drops half.
_OTHERS = (
    *((0, 16), (16, 4), (20, 1), (22, 2), (24, 8), (32, 32)),
    *((0x4201, 1), (0x4202, 2), (0x4204, 2), (0x4207, 1), (0x4208, 8), (0x4210, 16)),
)
_ALL = (1 << 64) - 1
_SEEN = (1 << 32) - 1  # the bits of a request that count for every kind of program

# The kinds of programs that Linux runs on a machine (libseccomp include/seccomp.h.in).
_KINDS = {"x86_64": ("X86_64", "X86", "X32"), "aarch64": ("AARCH64", "ARM")}

_PERMITTING = ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG")


def of_a_holder(profile: dict[str, object]) -> dict[str, object]:
    """`profile`, a config.json's `linux.seccomp`, for a container that has a GPU."""
    return without_rings(without_exit_stops(profile))


def unconfined(machine: str) -> dict[str, object]:
    """A profile that forbids nothing, for a container that has none; empty if none can be made.

    Args:
        machine: what uname(2) calls the machine. Programs of a kind that a profile does not name
            are killed at their first call.
    """
    kinds = _KINDS.get(machine)
    if kinds is None:
        return {}
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [f"SCMP_ARCH_{k}" for k in kinds]}


def without_rings(profile: dict[str, object]) -> dict[str, object]:
    """`profile`, a config.json's `linux.seccomp`, without leave for io_uring.

    A profile that is empty stays so: who has none, such as a privileged task, is not restricted.
    """
    if not profile:
        return profile
    calls: list[object] = []
    for call in items(profile.get("syscalls")):
        entry = table(call)
        names = items(entry.get("names"))
        others = [name for name in names if name not in _RINGS]
        if others == names or entry.get("action") not in _PERMITTING:
            calls.append(call)
        elif others:
            calls.append({**entry, "names": others})
    rule: dict[str, object] = {"names": [*_RINGS], "action": "SCMP_ACT_ERRNO"}
    if profile.get("defaultAction") in _PERMITTING and rule not in calls:
        calls.append(rule)
    return {**profile, "syscalls": calls}


def without_exit_stops(profile: dict[str, object]) -> dict[str, object]:
    """`profile`, a config.json's `linux.seccomp`, without that option for ptrace.

    A profile that is empty stays so: who has none, such as a privileged task, is not restricted.
    A permission of ptrace with conditions that are not ours is dropped; Concourse has none.
    """
    if not profile:
        return profile
    permitted = _permitted()
    calls: list[object] = []
    for call in items(profile.get("syscalls")):
        entry = table(call)
        names, conditions = items(entry.get("names")), items(entry.get("args"))
        if _CALL not in names or entry.get("action") not in _PERMITTING or conditions in permitted:
            calls.append(call)
            continue
        if others := [name for name in names if name != _CALL]:
            calls.append({**entry, "names": others})
        if not conditions:
            calls += [{**entry, "names": [_CALL], "args": rule} for rule in permitted]
    if profile.get("defaultAction") in _PERMITTING:
        rules = ({"names": [_CALL], "action": "SCMP_ACT_ERRNO", "args": r} for r in _forbidden())
        calls += [rule for rule in rules if rule not in calls]
    return {**profile, "syscalls": calls}


def _permitted() -> list[list[object]]:
    """The conditions of each rule that lets ptrace pass; one that holds is enough."""
    others = [[_compare(_REQUEST, _ALL ^ (count - 1), first)] for first, count in _OTHERS]
    setting = [
        [_compare(_REQUEST, _ALL, request), _compare(_DATA, _TRACE_EXIT, 0)]
        for request in _SETTING
    ]
    return [*others, *setting]


def _forbidden() -> list[list[object]]:
    return [
        [_compare(_REQUEST, _SEEN, request), _compare(_DATA, _TRACE_EXIT, _TRACE_EXIT)]
        for request in _SETTING
    ]


def _compare(position: int, mask: int, value: int) -> object:
    return {"index": position, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
