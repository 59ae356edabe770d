# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Whose steps containers are, asked of the web on this machine: a program of its own.

`python3 -m ci.concourse.api.build_info_program <container>...` writes what it found to stdout
(gpu_agent.reporting.joblog.build_names.as_json). Its caller is root, and sets a time limit.
"""

import collections.abc
import pathlib
import sys
import typing
import urllib.parse

from ci.concourse.api import build_info as handles
from ci.concourse.api.api import Api, WebError, is_webs
from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names

SECONDS: typing.Final = 15.0
"""How long it may take, all in all."""

MOST: typing.Final = 32
"""Containers that it looks for at once."""


def find(web: Api, containers: collections.abc.Sequence[str]) -> dict[str, Names]:
    """Whose steps these containers are; those that web does not know are left out.

    Raises:
        ci.concourse.api.api.WebError: web gives no answer.
        gpu_agent.reporting.joblog.build_names.AnswerError: web answers something else.
    """
    listed = web.get(handles.TEAMS_PATH)
    teams = [] if listed is None else list(handles.teams(listed))
    found: dict[str, Names] = {}
    for container in containers:
        for team in teams:
            answer = web.get(_path(team, container))
            names = None if answer is None else handles.names(answer, team, container)
            if names:
                found[container] = names
                # The next is likely to be of the same team.
                teams.insert(0, teams.pop(teams.index(team)))
                break
    return found


def main(
    arguments: collections.abc.Sequence[str],
    settings: pathlib.Path = handles.SETTINGS,
    proof: collections.abc.Callable[[int], bool] = is_webs,
    seconds: float = SECONDS,
) -> int:
    """The program; its exit status is 1 where nothing could be found out.

    Before web is set up, no container has a name; that is no fault.
    """
    if not settings.exists():
        sys.stdout.write(build_names.as_json({}) + "\n")
        return 0
    try:
        web = Api(settings, seconds, proof)
        containers = [name for name in arguments if build_names.is_id(name)]
        sys.stdout.write(build_names.as_json(find(web, containers[:MOST])) + "\n")
    except (WebError, build_names.AnswerError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _path(team: str, container: str) -> str:
    team, container = (urllib.parse.quote(word, safe="") for word in (team, container))
    return f"{handles.TEAMS_PATH}/{team}/containers/{container}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
