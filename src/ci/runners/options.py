# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of runners, typed and validated. Pure."""

import collections.abc
import dataclasses
import re
import typing

from ci.runners import gitea, github
from ci.runners.github_app import App
from ci.runners.settings import Limits
from options import readers, values
from options.declaration import CiOptions, Group, Option, Read
from options.part import Part
from options.readers import Raw, text
from options.table import Options
from options.values import OptionError

# Names of organisations and repositories (Gitea 1.26 models/user/user.go, models/repo/repo.go).
_NAME: typing.Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_KEY: typing.Final = "private-key"
APP: typing.Final = ("app-id", "installation-id", _KEY)
"""The fields of a secret that has the key of a GitHub App."""

_LEAST_MEMORY: typing.Final = 256  # MiB; a runner's program alone takes some 50
_LEAST_TASKS: typing.Final = 64  # a runner's program alone has some 15 threads
_SIZE: typing.Final = re.compile(r"([0-9]{1,6})(M|G|T)")
_MIB: typing.Final = {"M": 1, "G": 1 << 10, "T": 1 << 20}


@dataclasses.dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: where it is; empty: nowhere.
        sha256: of the file, in hex.
    """

    url: str = ""
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class RunnersOptions:
    """The options of runners after validation; empty means "not set".

    Attributes:
        url: where the CI service is, without a slash at its end.
        scope: whose jobs the runners take.
        group: the runner group of an organisation of GitHub.
        credential: the fields of the secret.
        most: how many runners a unit may have; 0: as many as the GPUs suffice for, at least one.
        download: the runner's program.
        limits: what one runner may use.
        containers: whether jobs may have containers of the machine's engine.
    """

    url: str
    scope: str
    group: str
    credential: collections.abc.Mapping[str, str] = dataclasses.field(repr=False)
    most: int
    download: Download
    limits: Limits
    containers: bool = False


def chosen(options: Options) -> RunnersOptions:
    """Return the options of a unit that has runners."""
    return typing.cast(RunnersOptions, options.ci)


def _listed(names: collections.abc.Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _group(raw: Raw) -> str:
    remedy = "is not the name of a runner group: use printable characters without spaces around"
    return readers.pattern(raw, "runner-group", r"(?:[!-~](?:[ -~]{0,98}[!-~])?)?", remedy)


def _scope(raw: Raw) -> str:
    remedy = "is not a scope: use OWNER/REPOSITORY, ORGANISATION, or nothing for the whole server"
    return readers.pattern(raw, "runner-scope", f"({_NAME}(/{_NAME})?)?", remedy)


def _credential(raw: Raw) -> collections.abc.Mapping[str, str]:
    given = raw.get("runner-secret")
    found = typing.cast("dict[str, str]", given) if isinstance(given, dict) else {}
    fields = {name: value.strip() for name, value in found.items()}
    if fields and "api-token" not in fields and not fields.keys() >= {*APP}:
        remedy = f"has no field api-token: add it, or for a GitHub App {', '.join(APP)}"
        raise OptionError("runner-secret", "(secret)", remedy)
    for name, value in fields.items():
        if name != _KEY and not re.fullmatch(r"[!-~]{1,255}", value):
            raise OptionError("runner-secret", "(secret)", f"has an unusable {name}: set it again")
    if fields.keys() >= {*APP}:
        try:
            App(fields["app-id"], fields["installation-id"], fields[_KEY])
        except ValueError as error:
            raise OptionError("runner-secret", "(secret)", f"is of no use: {error}") from error
    return fields


def _download(raw: Raw) -> Download:
    given = text(raw, "runner-download")
    address, at, digest = given.rpartition("@sha256:")
    if given and not (at and re.fullmatch(r"[0-9a-fA-F]{64}", digest)):
        remedy = "has no checksum: use URL@sha256:<64 hex digits>"
        raise OptionError("runner-download", given, remedy)
    return Download(values.url("runner-download", address), digest.lower())


def _limits(raw: Raw) -> Limits:
    known = {"memory": _size(_LEAST_MEMORY), "tasks": _tasks, "disk": _size(1)}
    given = readers.settings(raw, "runner-limits", known)
    return Limits(**{name: found for name, (found,) in given.items()})


def _size(least: int) -> collections.abc.Callable[[str], int]:
    def read(value: str) -> int:
        match = _SIZE.fullmatch(value)
        found = int(match.group(1)) * _MIB[match.group(2)] if match else 0
        if found < least:
            raise ValueError(f"is not a size of at least {least}M: use one such as 16G")
        return found

    return read


def _tasks(value: str) -> int:
    found = readers.whole(value)
    if found is None or not _LEAST_TASKS <= found <= 1 << 20:
        raise ValueError(f"is out of range: use {_LEAST_TASKS} to {1 << 20}")
    return found


_OPTIONS: typing.Final = (
    Option(
        "runner-url",
        default="",
        text=(
            "URL of the CI service whose jobs this unit runs, such as https://gitea.example.com, "
            "https://github.com, or that of a GitHub Enterprise Server. The machine must trust "
            "its certificate."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="url",
        read=lambda raw: values.url("runner-url", text(raw, "runner-url")),
    ),
    Option(
        "runner-scope",
        default="",
        text=(
            "Whose jobs the runners take: `OWNER/REPOSITORY` or an organisation. Empty: those of "
            "the whole server, which only Gitea allows."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="scope",
        read=_scope,
    ),
    Option(
        "runner-group",
        default="",
        text=(
            "Runner group of a GitHub organisation, by its name. Empty: the default group. GitHub "
            "gives the runners only jobs of repositories that may use the group."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="group",
        read=_group,
    ),
    Option(
        "runner-secret",
        default=None,
        text=(
            "URI of a Juju secret. Its field `api-token` is a token that may manage the runners "
            "of runner-scope: of Gitea an API token that may write its settings (for the whole "
            "server: an administrator's), of GitHub a personal access token. For a GitHub App the "
            f"secret has {_listed(APP)} instead. With Gitea the field `registration-token` is "
            "optional: without it the charm asks Gitea for one."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="credential",
        read=_credential,
    ),
    Option(
        "runners",
        default=0,
        text=(
            "Maximum number of runners of a unit, 0 to 256. Each has gpus-per-task GPUs, or as "
            "many as a waiting job asks for. Runners beyond those that the GPUs suffice for have "
            "none. 0: as many as the GPUs suffice for, or one on a unit without GPUs."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="most",
        read=lambda raw: readers.number(raw, "runners", 256),
    ),
    Option(
        "runner-limits",
        default="tasks=16384",
        text=(
            "What one runner with all processes of its job may use, comma-separated: "
            "`memory=64G`, `tasks=16384` (processes and threads), `disk=200G` (its folder and its "
            "/tmp). What is not named has no limit."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="limits",
        read=_limits,
    ),
    Option(
        "runner-containers",
        default="none",
        text=(
            "Containers of jobs: `none`, or `trusted` for those of the engine in "
            "container-engines that has `=default`. With `trusted` every job can become root on "
            "the machine: allow it only for workflows of people whom you would make root there."
        ),
        group=Group.RUNNERS,
        part=Part.WORKER,
        field="containers",
        read=lambda raw: readers.choice(raw, "runner-containers", ("none", "trusted")) != "none",
    ),
    Option(
        "runner-download",
        default="",
        text=(
            "URL of the runner's program for this machine, and its SHA-256: "
            "`https://dl.gitea.com/gitea-runner/1.0.8/gitea-runner-1.0.8-linux-amd64@sha256:<64 "
            "hex digits>`. The resource `runner` takes precedence. Empty: for GitHub the charm "
            "asks which release it wants now; GitHub gives no jobs to releases of a month ago."
        ),
        group=Group.RUNNERS,
        part=Part.RELEASE,
        field="download",
        read=_download,
    ),
)


def _make(read: Read) -> RunnersOptions:
    return RunnersOptions(**read(_OPTIONS))


GITHUB: typing.Final = CiOptions(
    name=github.NAME,
    text="runners of GitHub Actions, each with GPUs of its own for one job",
    modes=("worker",),
    declared=_OPTIONS,
    make=_make,
)

GITEA: typing.Final = CiOptions(
    name=gitea.NAME,
    text="runners of Gitea Actions, each with GPUs of its own for one job",
    modes=("worker",),
    declared=_OPTIONS,
    make=_make,
)
