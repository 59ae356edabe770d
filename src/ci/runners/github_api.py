# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How GitHub's API is called and how it refuses: address, limit of requests, errors. Pure."""

import contextlib
import datetime
import email.utils
import json
import typing
import urllib.parse

from ci.runners.service import Answer, Fault, ServiceError, check

HEADERS: typing.Final = {
    "Accept": "application/vnd.github+json",
    # The one version that github.com and each supported GitHub Enterprise Server know.
    "X-GitHub-Api-Version": "2022-11-28",
}
"""What each call has."""

# Seconds: the most that is waited, since GitHub counts requests by the hour; and what it asks for
# where it names no time (docs.github.com, best practices for using the REST API).
_MOST_WAIT: typing.Final = 3600.0
_WAIT: typing.Final = 60.0
_MOVED: typing.Final = (301, 302, 307, 308)


def address(url: str) -> str:
    """Return where the API is, given where the pages are: github.com, or a server of one's own."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.lower().removeprefix("www.").removeprefix("api.")
    if host == "github.com" or host.endswith(".ghe.com"):
        return f"https://api.{host}"
    return f"{parts.scheme}://{parts.netloc}/api/v3"


def checked(answer: Answer, what: str, now: float, *, known: tuple[int, ...] = (200,)) -> Answer:
    """Return an answer that has one of the `known` codes.

    Args:
        answer: the answer.
        what: what was asked for, for people.
        now: seconds since 1970, on this machine.
        known: the codes that the conversation understands.

    Raises:
        ServiceError: it has another one. The text has GitHub's own words.
    """
    if answer.status in known:
        return answer
    if seconds := wait(answer, now):
        text = f"{what}: GitHub takes no more requests now, and asks to wait {seconds:.0f} s"
        raise ServiceError(Fault.BUSY, text, seconds)
    if answer.status in _MOVED:
        text = f"{what}: it has another name on GitHub now: set the new one"
        raise ServiceError(Fault.NOT_FOUND, text)
    said = message(answer)
    return check(answer, f"{what} (GitHub says: {said})" if said else what, known=known)


def wait(answer: Answer, now: float) -> float:
    """Return how long GitHub asks to wait, in seconds; 0 if this answer is no such request.

    Its limits answer 403 as well as 429.
    """
    if answer.status not in (403, 429):
        return 0.0
    if answer.retry_after:
        return answer.retry_after
    if answer.headers.get("x-ratelimit-remaining") == "0":
        # By GitHub's clock: this machine's may be wrong.
        left = number(answer, "x-ratelimit-reset") - (date(answer) or now)
        return min(max(left, 1.0), _MOST_WAIT)
    return _WAIT if answer.status == 429 else 0.0


def date(answer: Answer) -> float | None:
    """Return when GitHub sent an answer, in seconds since 1970; None: it does not say."""
    with contextlib.suppress(ValueError):
        return email.utils.parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    return None


def number(answer: Answer, header: str) -> int:
    """Return the number in a header of an answer; 0: it has none."""
    value = answer.headers.get(header, "")
    return int(value) if value.isascii() and value.isdigit() else 0


def moment(text: str) -> float:
    """Return a time in GitHub's form, such as `2026-08-01T12:00:00Z`, in seconds since 1970.

    Raises:
        ValueError: it has another form.
    """
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def message(answer: Answer) -> str:
    """Return what GitHub says in an error, shortened; or empty."""
    try:
        found: object = json.loads(answer.body)
    except (ValueError, RecursionError):
        return ""
    said = (
        typing.cast("dict[str, object]", found).get("message") if isinstance(found, dict) else ""
    )
    return " ".join(said.split())[:200] if isinstance(said, str) else ""
