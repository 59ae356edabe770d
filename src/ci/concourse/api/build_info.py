# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What web's API says of containers, taken apart: nothing in it is trusted.

Authors of pipelines choose the names of pipelines, jobs and teams. So that a name cannot control
an operator's terminal, unprintable characters are replaced and long names are cut
(gpu_agent.reporting.receipts.receipt.cut).
"""

import pathlib
import re
import typing

from gpu_agent.reporting.joblog import build_names
from gpu_agent.reporting.receipts.receipt import Names, cut

SETTINGS: typing.Final = pathlib.Path("/etc/concourse/web.env")
"""The settings of the web on this machine, for root alone; missing where no web is set up."""

LOGIN_PATH: typing.Final = "/sky/issuer/token"
"""Where web gives a token for a password (8.3.0 fly/commands/login.go)."""

CLIENT: typing.Final = ("fly", "Zmx5")
"""What fly itself says that it is there; the same for all, and no secret."""

SCOPE: typing.Final = "openid profile email federated:id groups"

TEAMS_PATH: typing.Final = "/api/v1/teams"

_TOKEN: typing.Final = re.compile(r"[\x21-\x7e]{1,8192}")
_MOST_TEAMS: typing.Final = 500
_LONGEST_TEAM: typing.Final = 200


def token(answer: bytes) -> str:
    """The token in the answer to a password.

    Raises:
        AnswerError: there is none.
    """
    found = build_names.table(answer).get("access_token")
    if not isinstance(found, str) or not _TOKEN.fullmatch(found):
        raise build_names.AnswerError("web gave no token")
    return found


def teams(answer: bytes) -> tuple[str, ...]:
    """The names of the teams in the answer to TEAMS_PATH, as web has them.

    Raises:
        AnswerError: it is not a list of teams.
    """
    found = build_names.parsed(answer)
    if not isinstance(found, list):
        raise build_names.AnswerError("web gave no list of teams")
    entries = typing.cast("list[object]", found)[:_MOST_TEAMS]
    names = [entry.get("name") for entry in map(_as_table, entries)]
    return tuple(
        name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_TEAM
    )


def names(answer: bytes, team: str, container: str) -> Names | None:
    """Whose step a container is, of the answer about it (atc.Container, 8.3.0 atc/container.go).

    Returns:
        None where the answer is about another container.

    Raises:
        AnswerError: it is not a container.
    """
    found = build_names.table(answer)
    if found.get("id") != container:
        return None

    def text(name: str) -> str:
        value = found.get(name, "")
        if not isinstance(value, str):
            raise build_names.AnswerError(f"{name} of a container is not a text")
        return cut(value)

    return Names(cut(team), text("pipeline_name"), text("job_name"), text("build_name"))


def _as_table(entry: object) -> dict[str, object]:
    return typing.cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
