# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Have conversations with a CI service over HTTP, with a limit of the total time."""

import json
import re
import time
import typing

from ci.runners.service import Answer, Call, Fault, ServiceError, Talk
from machine import http_client

LARGEST: typing.Final = 4 << 20
"""Of an answer, in bytes: a page of fifty jobs has some 100 kB."""

_AGENT: typing.Final = "gpu-ci-worker"
_MOST_WAIT: typing.Final = 3600.0  # seconds that a service may ask to wait
_Learned = typing.TypeVar("_Learned")


def talk(url: str, conversation: Talk[_Learned], seconds: float) -> _Learned:
    """Have a conversation to its end; return its result.

    Args:
        url: where the service is, without a slash at its end.
        conversation: the conversation.
        seconds: how long all of it may take.

    Raises:
        ServiceError: it failed.
    """
    end = time.monotonic() + seconds
    try:
        call = next(conversation)
        while True:
            call = conversation.send(_ask(url, call, end - time.monotonic()))
    except StopIteration as done:
        return done.value


def _ask(url: str, call: Call, seconds: float) -> Answer:
    """Send one call; return the answer, whatever its status.

    Raises:
        ServiceError: the service does not answer.
    """
    headers, data = {"Accept": "application/json", "User-Agent": _AGENT, **call.headers}, None
    if call.secret:
        headers["Authorization"] = call.secret
    if call.body is not None:
        data, headers["Content-Type"] = json.dumps(call.body).encode(), "application/json"
    try:
        found = http_client.exchange(
            call.method, url + call.path, headers, data, seconds=seconds, largest=LARGEST
        )
    except http_client.TooLargeError as error:
        raise ServiceError(Fault.STRANGE, f"{url}: {error}") from error
    except http_client.NoResponseError as error:
        raise ServiceError(Fault.UNREACHABLE, f"{url} does not answer: {error}") from error
    wait = found.headers.get("retry-after", "")
    asked = float(wait) if re.fullmatch("[0-9]{1,6}", wait) else 0.0
    return Answer(found.status, found.body, min(asked, _MOST_WAIT), found.headers)
