# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A seccomp profile for containers with a GPU: no exit stops of ptrace, no io_uring. Pure.

Two processes that trace each other and stop at their exit (PTRACE_O_TRACEEXIT) wait for each other
without end, even after SIGKILL, so their devices never become free. The profile forbids only that
option, with EPERM; tracing without it works as before (linux/ptrace.h and asm/ptrace-abi.h of
Linux 6.18). gdb does not use the option; strace needs it and fails.

A file that is registered with an io_uring is not in a list of descriptors, and the kernel shows
other processes only its path. So io_uring is forbidden, as in Concourse's own profile.
"""

from __future__ import annotations

from gpu_runtime.json_shape import items, table

_RINGS = ("io_uring_setup", "io_uring_enter", "io_uring_register")

_CALL = "ptrace"
_TRACE_EXIT = 0x40  # a bit of the options, which are the argument `data`
_REQUEST, _DATA = 0, 3  # positions of arguments

# The requests that set options: PTRACE_OLDSETOPTIONS, PTRACE_SETOPTIONS, PTRACE_SEIZE.
_SETTING = (21, 0x4200, 0x4206)
# All other requests up to 63 and from 0x4200 to 0x421f, more than exist: the first of each group
# of numbers that differ only in their lowest bits, and the size of the group. A rule cannot have
# two conditions on one argument (runc libcontainer/seccomp). A number that looks greater than one
# of the above may mean that one to the kernel: x32 programs pass 64 bits, of which it drops half.
_OTHERS = (
    *((0, 16), (16, 4), (20, 1), (22, 2), (24, 8), (32, 32)),
    *((0x4201, 1), (0x4202, 2), (0x4204, 2), (0x4207, 1), (0x4208, 8), (0x4210, 16)),
)
_ALL = (1 << 64) - 1
_SEEN = (1 << 32) - 1  # the bits of a request that count for every kind of program

# The architectures of programs that Linux runs on a machine (libseccomp include/seccomp.h.in).
_KINDS = {"x86_64": ("X86_64", "X86", "X32"), "aarch64": ("AARCH64", "ARM")}

_PERMITTING = ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG")


def of_a_holder(profile: dict[str, object]) -> dict[str, object]:
    """Return `profile`, a config.json's `linux.seccomp`, for a container that has a GPU."""
    return without_rings(without_exit_stops(profile))


def unconfined(machine: str) -> dict[str, object]:
    """Return a profile that forbids nothing; empty if the machine is unknown.

    Args:
        machine: the machine as in uname(2). A program of an architecture that the profile does not
            name is killed at its first call.
    """
    kinds = _KINDS.get(machine)
    if kinds is None:
        return {}
    return {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [f"SCMP_ARCH_{k}" for k in kinds]}


def without_rings(profile: dict[str, object]) -> dict[str, object]:
    """Return `profile`, a config.json's `linux.seccomp`, with io_uring forbidden.

    An empty profile stays empty: a container without one, such as a privileged task, is not
    restricted.
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
    """Return `profile`, a config.json's `linux.seccomp`, with that option of ptrace forbidden.

    An empty profile stays empty: a container without one, such as a privileged task, is not
    restricted. A rule that permits ptrace with other conditions is dropped; Concourse has none.
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
    """Return the conditions of each rule that permits ptrace; one that holds is enough."""
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
