# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How web on this machine sees its workers, for how long it was wrong, and the end of an entry."""

import collections.abc
import json
import logging
import pathlib
import re
import time
import typing
import urllib.parse

from ci.concourse.api import build_info as handles
from ci.concourse.api.api import Api, WebError, is_webs
from gpu_agent.reporting.joblog import build_names
from machine import files
from machine import polling as waiting
from relations.worker_view import ABSENT, STATES, Sight, digest, is_right

# In seconds: all questions, and how long a worker that was just started may take to be seen.
_ANSWERS: typing.Final = 8.0
_COMES: typing.Final = 5.0
# When it was first seen otherwise than it should be, by the clock of this boot.
_WRONG_SINCE: typing.Final = pathlib.Path("/run/gpu-ci/worker-not-seen")
_PATH: typing.Final = "/api/v1/workers"
# A worker that does not run: of a retiring or landing one web still waits for builds.
_OVER: typing.Final = ("stalled", "landed")

_log = logging.getLogger(__name__)


def look(
    wanted: collections.abc.Mapping[str, str],
    settings: pathlib.Path = handles.SETTINGS,
    proof: collections.abc.Callable[[int], bool] = is_webs,
    *,
    seconds: float = _ANSWERS,
    comes: float = _COMES,
) -> dict[str, Sight] | None:
    """How web on this machine sees these workers.

    Takes a moment where all are as they should be, and some seconds where they aren't.

    Args:
        wanted: the workers' names, and the digest of the tags that each is to have; empty: any.
        settings: web's.
        proof: given the inode of a socket, whether it is web's.
        seconds: how long all questions may take.
        comes: for how many seconds a worker that is not as it should be is looked for again.

    Returns:
        None where web can't be asked now.
    """
    try:
        web = Api(settings, seconds, proof)
        seen: dict[str, Sight] = {}

        def as_wanted() -> bool:
            seen.update(_all(web, wanted))
            return all(is_right(seen[name], tags) for name, tags in wanted.items())

        waiting.until(as_wanted, comes, every=0.5)
    except (WebError, build_names.AnswerError):
        return None
    return seen


def prune(
    names: collections.abc.Iterable[str],
    settings: pathlib.Path = handles.SETTINGS,
    proof: collections.abc.Callable[[int], bool] = is_webs,
) -> frozenset[str]:
    """Have web forget those of these workers that are stalled or landed.

    One that registers later is a new worker to web, without the caches of the former.

    Args:
        names: workers whose units are gone.
        settings: web's.
        proof: given the inode of a socket, whether it is web's.

    Returns:
        Those that web may still list: they run, or web can't be asked now.
    """
    left = frozenset(names)
    try:
        web = Api(settings, _ANSWERS, proof)
        for name, sight in _all(web, left).items():
            if sight.state in _OVER:
                # Web itself refuses it for a worker that runs again (8.3.0 atc/db/worker.go).
                web.put(f"{_PATH}/{urllib.parse.quote(name, safe='')}/prune")
                _log.info("web forgets the worker %s, %s, whose unit is gone", name, sight.state)
            elif sight.state != ABSENT:
                continue
            left -= {name}
    except (WebError, build_names.AnswerError) as error:
        _log.warning("workers whose units are gone may stay in web's list: %s", error)
    return left


def wrong_for(*, wrong: bool, note: pathlib.Path = _WRONG_SINCE) -> float:
    """For how many seconds the worker has been seen otherwise than it should be.

    Args:
        wrong: whether it is now.
        note: keeps since when it is, in seconds of the clock of this boot.
    """
    if not wrong:
        files.ensure_absent(note)
        return 0.0
    now = time.monotonic()
    noted = re.fullmatch(r"([0-9]+)\n", files.read_text(note) or "")
    if noted is None:
        files.ensure_directory(note.parent)
        files.ensure_file(note, f"{now:.0f}\n")
        return 0.0
    return now - float(noted[1])


def _all(web: Api, wanted: collections.abc.Iterable[str]) -> dict[str, Sight]:
    answer = web.get(_PATH)
    try:
        listed: object = json.loads(answer or b"")
    except (ValueError, RecursionError) as error:
        raise WebError("web's answer is no JSON") from error
    if not isinstance(listed, list):
        raise WebError("web gave no list of workers")
    sights = dict(map(_sight, typing.cast("list[object]", listed)))
    return {name: sights.get(name, Sight(ABSENT)) for name in wanted}


def _sight(entry: object) -> tuple[str, Sight]:
    """A worker's name, and how web sees it (8.3.0 atc/worker.go)."""
    table = typing.cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
    name, state = table.get("name"), table.get("state")
    if not isinstance(name, str) or state not in STATES:
        raise WebError("web lists a worker without name or state")
    tags: object = table.get("tags") or []
    words = typing.cast("list[object]", tags) if isinstance(tags, list) else [None]
    if not all(isinstance(word, str) for word in words):
        raise WebError("web lists a worker with tags that are not texts")
    return name, Sight(str(state), digest(map(str, words)))
