# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The builds of containers as JSON, from the program that asks the CI system.

Authors of pipelines choose the names of pipelines, jobs and teams, and must not control an
operator's terminal. So unprintable characters are replaced and long names are cut
(gpu_agent.reporting.receipts.receipt.cut).
"""

import collections.abc
import json
import re
import typing

from gpu_agent.reporting.receipts.receipt import Names, cut

_ID: typing.Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class AnswerError(ValueError):
    """An answer has another form; the text says which."""


def is_id(container: str) -> bool:
    """Whether this can be a container's id, which becomes an argument of a program."""
    return _ID.fullmatch(container) is not None


def as_json(found: collections.abc.Mapping[str, Names]) -> str:
    """The JSON that `read` parses."""
    rows = {key: [one.team, one.pipeline, one.job, one.build] for key, one in found.items()}
    return json.dumps(rows)


def read(text: str) -> dict[str, Names]:
    """Parse the JSON of `as_json`.

    Raises:
        AnswerError: the text has another form.
    """
    rows = table(text.encode(errors="replace"))
    found: dict[str, Names] = {}
    for container, row in rows.items():
        words = typing.cast("list[object]", row) if isinstance(row, list) else []
        if len(words) != 4 or not all(isinstance(word, str) for word in words):
            raise AnswerError("it has no names of containers")
        found[container] = Names(*(cut(str(word)) for word in words))
    return found


def parsed(answer: bytes) -> object:
    """Parse an answer in JSON.

    Raises:
        AnswerError: the answer is not JSON.
    """
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise AnswerError("the answer is not JSON") from error


def table(answer: bytes) -> dict[str, object]:
    """Parse an answer that is a JSON object.

    Raises:
        AnswerError: the answer is not a JSON object.
    """
    found = parsed(answer)
    if not isinstance(found, dict):
        raise AnswerError("the answer is not a JSON object")
    return typing.cast("dict[str, object]", found)
