# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A profile without exit stops, asked as the kernel asks it; real runc's answer is functional."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpu_runtime.seccomp import of_a_holder, without_exit_stops, without_rings

ALLOW, ERRNO, LOG = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_LOG"
TRACE_EXIT = 0x40
SETTING = [21, 0x4200, 0x4206]  # PTRACE_OLDSETOPTIONS, PTRACE_SETOPTIONS, PTRACE_SEIZE
# Concourse's: what is not listed is forbidden, and ptrace is listed.
LISTED = {"defaultAction": ERRNO, "syscalls": [{"names": ["read", "ptrace"], "action": ALLOW}]}
OPEN = {"defaultAction": ALLOW, "syscalls": [{"names": ["mount"], "action": ERRNO}]}
REQUESTS = some.integers(0, 63) | some.integers(0x4200, 0x421F) | some.sampled_from(SETTING)
WORDS = some.integers(0, 2**64 - 1) | some.integers(0, 0xFF)


def answer(profile, request, data):
    """The action on a ptrace with these arguments: some rule holds, or the default."""
    arguments = [request, 7, 0, data]
    for entry in profile["syscalls"]:
        told = [(arg["index"], arg["value"], arg["valueTwo"]) for arg in entry.get("args", [])]
        holds = all(arguments[index] & mask == value for index, mask, value in told)
        assert all(arg["op"] == "SCMP_CMP_MASKED_EQ" for arg in entry.get("args", []))
        assert len({index for index, *_ in told}) == len(told), "runc would take either of two"
        if "ptrace" in entry["names"] and holds:
            return entry["action"]
    return profile["defaultAction"]


@settings(deadline=None, database=None)
@given(REQUESTS, WORDS)
def test_exit_stops_alone_are_forbidden(request, data):
    forbidden = request in SETTING and data & TRACE_EXIT
    for profile in (LISTED, OPEN):
        expected = ERRNO if forbidden else ALLOW
        assert answer(without_exit_stops(profile), request, data) == expected


@settings(deadline=None, database=None)
@given(some.sampled_from(SETTING), some.integers(1, 2**32 - 1), WORDS)
def test_what_the_kernel_may_take_for_such_a_request_is_forbidden(request, above, data):
    """Of a program of 32 bits on 64 it sees the lower half alone."""
    for profile in (LISTED, OPEN):
        found = answer(without_exit_stops(profile), above << 32 | request, data | TRACE_EXIT)
        assert found == ERRNO


def test_other_calls_and_fields_stay():
    profile = {**LISTED, "architectures": ["SCMP_ARCH_X86_64"], "flags": ["x"]}
    after = without_exit_stops(profile)
    assert {**after, "syscalls": 0} == {**profile, "syscalls": 0}
    assert after["syscalls"][0] == {"names": ["read"], "action": ALLOW}
    assert all(entry["names"] == ["ptrace"] for entry in after["syscalls"][1:])
    assert without_exit_stops(OPEN)["syscalls"][:1] == OPEN["syscalls"]


@pytest.mark.parametrize("default", [ERRNO, ALLOW, LOG, "SCMP_ACT_KILL"])
@pytest.mark.parametrize("action", [ERRNO, ALLOW, LOG])
@pytest.mark.parametrize("args", [[], [{"index": 0, "value": 0x4206, "op": "SCMP_CMP_EQ"}]])
def test_a_second_time_changes_nothing_more(default, action, args):
    entry = {"names": ["ptrace"], "action": action, "args": args}
    once = without_exit_stops({"defaultAction": default, "syscalls": [entry]})
    assert without_exit_stops(once) == once
    assert json.loads(json.dumps(once)) == once


def test_what_was_forbidden_stays_forbidden():
    denied = {"defaultAction": ALLOW, "syscalls": [{"names": ["ptrace"], "action": ERRNO}]}
    assert answer(without_exit_stops(denied), 0x4206, 0) == ERRNO
    unlisted = {"defaultAction": ERRNO, "syscalls": [{"names": ["read"], "action": ALLOW}]}
    assert without_exit_stops(unlisted) == unlisted


def test_a_permission_with_conditions_of_its_own_is_dropped():
    args = [{"index": 0, "value": 0x4206, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]
    entry = {"names": ["ptrace", "read"], "action": ALLOW, "args": args}
    after = without_exit_stops({"defaultAction": ERRNO, "syscalls": [entry]})
    assert after["syscalls"] == [{**entry, "names": ["read"]}]


def test_no_profile_is_none():
    assert without_exit_stops({}) == {}


RINGS = ["io_uring_setup", "io_uring_enter", "io_uring_register"]


@pytest.mark.parametrize("default", [ERRNO, ALLOW, LOG])
@pytest.mark.parametrize("action", [ALLOW, LOG])
def test_io_uring_is_permitted_by_nothing_that_is_left(default, action):
    """As podman's own profile permits it, and a profile that permits what it does not name."""
    listed = [{"names": [name, "read"], "action": action} for name in RINGS]
    profile = {"defaultAction": default, "syscalls": [*listed, {"names": RINGS, "action": action}]}
    once = of_a_holder(profile)
    assert of_a_holder(once) == once
    for name in RINGS:
        actions = [call["action"] for call in once["syscalls"] if name in call["names"]]
        assert actions == ([] if default == ERRNO else [ERRNO])
    assert once["syscalls"][: len(listed)] == [{"names": ["read"], "action": action}] * 3


def test_a_profile_without_io_uring_stays_and_so_does_an_empty_one():
    assert without_rings(LISTED) == LISTED
    assert without_rings({}) == {}
