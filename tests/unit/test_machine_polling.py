# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Waiting ends with the answer, with the deadline, or with what can't pass."""

import itertools
import time

import pytest

from machine import polling as waiting


class Asked:
    """Gives one answer after the other; errors are raised, and the last one stays."""

    def __init__(self, *answers):
        self.answers, self.times = [*answers], []

    def __call__(self):
        self.times.append(time.monotonic())
        answer = self.answers[0]
        self.answers = self.answers[1:] or self.answers
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def pauses(self):
        return [after - before for before, after in itertools.pairwise(self.times)]


def is_os_error(error):
    return isinstance(error, OSError)


def test_first_question_is_asked_at_once_and_the_answer_returned():
    asked = Asked("here")
    before = time.monotonic()
    assert waiting.until(asked, 0) == "here"
    assert asked.times[0] - before < 0.1


def test_it_is_asked_until_it_is_so():
    asked = Asked("", 0, None, "here", "")
    assert waiting.until(asked, 60, every=0.02) == "here"
    assert all(0.02 <= pause < 5 for pause in asked.pauses())
    assert len(asked.times) == 4


@pytest.mark.parametrize("answer", [False, None, ""])
def test_after_the_deadline_the_last_answer_counts(answer):
    asked = Asked(answer)
    assert waiting.until(asked, 0.2, every=0.02) is answer
    assert asked.times[-1] - asked.times[0] < 5
    assert len(asked.times) > 2
    assert waiting.until(asked, 0) is answer


def test_an_error_ends_the_waiting_for_an_answer():
    asked = Asked(None, OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        waiting.until(asked, 60, every=0)
    assert len(asked.times) == 2


def test_errors_that_pass_are_waited_out():
    asked = Asked(OSError("busy"), OSError("busy"), "")
    # Any answer counts, also an empty one.
    assert waiting.retry(asked, is_os_error, 60, every=0.02) == ""
    assert all(0.02 <= pause < 5 for pause in asked.pauses())
    assert len(asked.times) == 3


def test_another_error_is_raised_at_once_and_the_last_one_after_the_deadline():
    with pytest.raises(ValueError, match="nonsense"):
        waiting.retry(Asked(OSError("busy"), ValueError("nonsense")), is_os_error, 60, every=0)
    with pytest.raises(OSError, match="still busy"):
        waiting.retry(Asked(OSError("busy"), OSError("still busy")), is_os_error, 0.05, every=0.02)
