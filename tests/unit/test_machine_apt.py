# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Calls of apt and dpkg that are killed, run out of time or find dpkg interrupted.

What they do is proven in functional/test_machine_packages.py.
"""

import pytest

from machine import apt, process

INTERRUPTED = "E: dpkg was interrupted, you must manually run 'sudo dpkg --configure -a'\n"
TERM_LOG = "see /var/log/apt/term.log, then run 'sudo dpkg --configure -a'"


@pytest.fixture
def answers(monkeypatch):
    """What programs answer, one after the other; `calls` has which they were."""
    answers, calls = [], []

    def run(argv, **_):
        calls.append(argv[0].rpartition("/")[2])
        code, stderr = answers.pop(0)
        if code is None:
            raise process.CommandError(argv, None, stderr)
        return process.Completed(code, "", stderr)

    monkeypatch.setattr(process, "run", run)
    return answers, calls


@pytest.mark.parametrize("code", [None, -9])
@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: apt.known("a"), "the next event tries again"),
        (lambda: apt.available("a"), "the next event tries again"),
        (lambda: apt.simulate("a"), "the next event tries again"),
        (apt.unneeded, "the next event tries again"),
        (lambda: apt.update([]), "the next event tries again"),
        (lambda: apt.install("a"), TERM_LOG),
        (lambda: apt.purge("a"), TERM_LOG),
        (apt.end_interruption, TERM_LOG),
    ],
)
def test_one_that_is_killed_or_out_of_time_passes_and_only_a_change_leaves_work(
    answers, call, remedy, code
):
    answers[0].append((code, ""))
    with pytest.raises(apt.PackageError) as caught:
        call()
    assert caught.value.passes
    assert str(caught.value).endswith(f": {remedy}")


def test_an_interruption_since_the_last_look_is_ended_once(answers):
    asked, calls = answers
    for said in (INTERRUPTED, "E: Sub-process /usr/bin/dpkg exited unexpectedly\n"):
        calls.clear()
        asked += [(100, said), (0, ""), (0, "")]
        apt.install("a")
        assert calls == ["apt-get", "dpkg", "apt-get"]
    asked += [(100, INTERRUPTED), (1, "dpkg: error"), (100, INTERRUPTED)]
    with pytest.raises(apt.PackageError, match="run 'sudo dpkg --configure -a'"):
        apt.install("a")
    assert asked == []


# As apt 2.6 says it, with status 0: it goes on with the old lists.
NO_ROOM_FOR_LISTS = (
    "W: Failed to fetch http://a.example/dists/stable/InRelease  Error writing to file - write "
    "(28: No space left on device) [IP: 192.0.2.1 80]\nW: Some index files failed to download. "
    "They have been ignored, or old ones used instead.\n"
)


@pytest.mark.parametrize("ours", [[], ["http://a.example"]])
def test_lists_without_room_are_no_repository_that_can_not_be_reached(answers, ours):
    answers[0].append((0, NO_ROOM_FOR_LISTS))
    with pytest.raises(apt.PackageError, match=r"the disk.* is full .*: make room, see 'df -h"):
        apt.update(ours)
