# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The settings of the runners on this machine: a file that the charm writes, for root only."""

import dataclasses
import json
import pathlib
import typing

from ci.runners.labels import Facts, Labels

PATH: typing.Final = pathlib.Path("/etc/gpu-ci/runners.json")
RUN: typing.Final = pathlib.Path("/run/gpu-ci-runners")
"""For root only: the secrets of runners that begin, and the daemon's report."""
REPORT: typing.Final = RUN / "report.json"
FIGURES: typing.Final = RUN / "figures.json"
"""The daemon's figures for metrics (gpu_agent.model.ci_figures)."""

VERSION: typing.Final = 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one runner with all its processes may use.

    Attributes:
        memory: in MiB; 0: no limit.
        tasks: processes and threads; 0: no limit.
        disk: of its folder and its /tmp, in MiB; 0: no limit.
    """

    memory: int = 0
    tasks: int = 0
    disk: int = 0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the runners of this machine are.

    Attributes:
        service: the CI service, such as `gitea`.
        url: where its pages are, without a slash at its end.
        scope: whose jobs are taken; the service says what it may be.
        credential: the fields of the Juju secret.
        prefix: begins the name of each runner; no other machine's runners have it.
        program: the absolute path of the runner's program.
        most: how many runners the machine may have.
        per_runner: how many GPUs a runner has that no job asks for.
        labels: the operator's own.
        gpus: the facts of each GPU for labels, by id.
        cuda: the highest CUDA version of the driver; or empty.
        driver: the driver's version; or empty.
        rests: whether no runner may begin.
        limits: what one runner may use.
        proxies: the Juju model's, by the names that programs know, such as `https_proxy`.
        group: the runner group of an organisation of GitHub; empty: the default one.
        dispatch: path of the charm's dispatch; the daemon ends if it is gone. Empty: no charm.
        unit: Juju's name of this unit, whose charm is woken; empty: none.
        engine: the engine whose containers jobs may have, such as `docker`; empty: none.
    """

    service: str
    url: str
    scope: str
    credential: dict[str, str] = dataclasses.field(repr=False)
    prefix: str
    program: str
    most: int
    per_runner: int
    labels: Labels = ()
    gpus: dict[str, Facts] = dataclasses.field(default_factory=dict[str, Facts])
    cuda: str = ""
    driver: str = ""
    rests: bool = False
    limits: Limits = Limits()
    proxies: dict[str, str] = dataclasses.field(default_factory=dict[str, str], repr=False)
    group: str = ""
    dispatch: str = ""
    unit: str = ""
    engine: str = ""


def as_text(settings: Settings) -> str:
    """Return the content of the file. It has the credential."""
    return json.dumps({"version": VERSION, **dataclasses.asdict(settings)}, indent=1) + "\n"


def parse(text: str | bytes) -> Settings:
    """Read the text of `as_text`.

    Raises:
        ValueError: the text has no settings, or those of another version of the charm. The
            message repeats none of them.
    """
    try:
        found: dict[str, typing.Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise ValueError("they are of another version")
        found["gpus"] = {gpu: Facts(**facts) for gpu, facts in found["gpus"].items()}
        found["labels"] = tuple(found["labels"])
        found["limits"] = Limits(**found["limits"])
        return Settings(**found)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        kind = type(error).__name__
        raise ValueError(f"{PATH} has no settings of runners ({kind})") from None
