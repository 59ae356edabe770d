# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The builds of containers, as JSON between the watch and the program that asks the CI system.

Pipelines, jobs and teams have the names that their authors gave them, and who writes pipelines may
not choose what an operator's terminal does: what is not printable is replaced, what is too long is
cut (gpu_agent.reporting.receipts.receipt.cut).
"""

import collections.abc
import json
import typing

from gpu_agent.reporting.receipts.receipt import Names, cut


class AnswerError(ValueError):
    """Web answered something else than it should; the text says what."""


def as_json(found: collections.abc.Mapping[str, Names]) -> str:
    """What `read` reads."""
    rows = {key: [one.team, one.pipeline, one.job, one.build] for key, one in found.items()}
    return json.dumps(rows)


def read(text: str) -> dict[str, Names]:
    """What `as_json` told of.

    Raises:
        AnswerError: it is something else.
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
        AnswerError: it is none.
    """
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise AnswerError("web's answer is no JSON") from error


def table(answer: bytes) -> dict[str, object]:
    """Parse an answer that is an object in JSON.

    Raises:
        AnswerError: it is none.
    """
    found = parsed(answer)
    if not isinstance(found, dict):
        raise AnswerError("web's answer is no object")
    return typing.cast("dict[str, object]", found)
