# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Wait for conditions with a deadline."""

import collections.abc
import typing

import tenacity

_Answer = typing.TypeVar("_Answer")


def until(
    condition: collections.abc.Callable[[], _Answer], seconds: float, every: float = 0.2
) -> _Answer:
    """Ask until the answer is true, the first time at once. Return the last answer.

    Args:
        condition: is called; an error that it raises ends the wait.
        seconds: the longest wait.
        every: seconds between an answer and the next call.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda answer: not answer),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(every),
        retry_error_callback=_last,
    )
    return retrying(condition)


def retry(
    call: collections.abc.Callable[[], _Answer],
    passing: collections.abc.Callable[[BaseException], bool],
    seconds: float,
    every: float = 0.2,
) -> _Answer:
    """Call until it works, the first time at once. Return its result.

    Args:
        call: may be called many times.
        passing: returns whether an error may pass without help; any other error ends the wait.
        seconds: the longest wait; then the last error is raised.
        every: seconds between an error and the next call.
    """
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passing),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_fixed(every),
        reraise=True,
    )
    return retrying(call)


def _last(state: tenacity.RetryCallState) -> typing.Any:
    return state.outcome and state.outcome.result()
