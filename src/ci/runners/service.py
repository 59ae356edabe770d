# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a CI service is to the runners on this machine: conversations without input and output.

A conversation is a generator. It yields a call, is sent the answer, and returns a result. So it
can be tested on recorded exchanges, and `http.talk` is the only place that waits.
"""

import collections.abc
import dataclasses
import enum
import json
import typing

from ci.runners.labels import Labels
from gpu_agent.model.ci_figures import Requests

_LONGEST: typing.Final = 400  # characters of an error
_Learned = typing.TypeVar("_Learned")


@dataclasses.dataclass(frozen=True)
class Call:
    """A request of HTTP.

    Attributes:
        method: such as `GET`.
        path: below the service's URL, with its query.
        secret: the value of the header Authorization; empty: none is sent.
        body: sent as JSON; None: no body.
        headers: further ones; they have no secret.
    """

    method: str
    path: str
    secret: str = dataclasses.field(default="", repr=False)
    body: dict[str, object] | None = dataclasses.field(default=None, repr=False)
    headers: collections.abc.Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer of HTTP.

    Attributes:
        status: the code, such as 200.
        body: at most `http.LARGEST` bytes.
        retry_after: how long the service asks to wait, in seconds; 0: it does not say.
        headers: by name in lower case.
    """

    status: int
    body: bytes = b""
    retry_after: float = 0.0
    headers: collections.abc.Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


Talk = collections.abc.Generator[Call, Answer, _Learned]
"""A conversation with a result of this type."""


class Fault(enum.Enum):
    """Why a conversation failed; the value is its name in the daemon's report."""

    UNREACHABLE = "unreachable"
    """No answer: it passes by itself, or the operator finds the network broken."""
    BUSY = "busy"
    """The service has no time: 429 or 5xx."""
    CREDENTIAL = "credential"
    """The service does not know the credential: 401."""
    FORBIDDEN = "forbidden"
    """The credential does not allow this: 403."""
    NOT_FOUND = "not-found"
    """The service has no such organisation or repository: 404."""
    CLOCK = "clock"
    """The service does not take what this machine has signed, as the machine's clock is wrong."""
    STRANGE = "strange"
    """The answer is not one of this service's API."""


class ServiceError(Exception):
    """A conversation failed.

    Attributes:
        fault: how.
        retry_after: how long the service asks to wait, in seconds; 0: it does not say.
    """

    def __init__(self, fault: Fault, text: str, retry_after: float = 0.0) -> None:
        # A part of it may be the service's own words.
        super().__init__("".join(one if one.isprintable() else "?" for one in text[:_LONGEST]))
        self.fault = fault
        self.retry_after = retry_after


@dataclasses.dataclass(frozen=True)
class Remote:
    """A runner that the service knows.

    Attributes:
        id: the service's number of it.
        name: its name, which the machine chose.
    """

    id: str
    name: str


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that the service knows, and that has not ended.

    Attributes:
        repository: `owner/name`.
        name: its name, which its author chose.
        run: the number of the workflow's run.
        labels: what `runs-on` asks for.
        runner: the name of the runner that has it; empty: it waits.
    """

    repository: str
    name: str
    run: str
    labels: frozenset[str]
    runner: str


@dataclasses.dataclass(frozen=True)
class Registered:
    """A runner that the service has just registered.

    Attributes:
        id: the service's number of it.
        files: what the runner's program reads, by file name. It has the runner's own secret.
    """

    id: str
    files: collections.abc.Mapping[str, str] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a runner works.

    Attributes:
        name: its name.
        labels: what it offers.
        files: the folder in which it finds `Registered.files`.
        home: its folder on the disk.
        environment: the variables of its jobs.
    """

    name: str
    labels: Labels
    files: str
    home: str
    environment: collections.abc.Mapping[str, str]


class Service(typing.Protocol):
    """A CI service.

    Attributes:
        idle_processes: how many processes the program of a runner without a job has.
    """

    idle_processes: int

    @property
    def url(self) -> str:
        """Where its API is, without a slash at its end; its pages may be elsewhere."""
        ...

    @property
    def requests(self) -> Requests | None:
        """How many requests it allows, as it said last; None: it has not said."""
        ...

    @property
    def sees_jobs(self) -> bool:
        """Whether it can be asked for the jobs that wait; else `jobs` finds none."""
        ...

    def runners(self) -> Talk[tuple[Remote, ...]]:
        """Ask for all runners that it knows."""
        ...

    def jobs(self) -> Talk[tuple[Job, ...]]:
        """Ask for the jobs that wait or run, the oldest first."""
        ...

    def register(self, place: Place) -> Talk[Registered]:
        """Register a runner for one job."""
        ...

    def withdraw(self, remote: Remote) -> Talk[bool]:
        """Let the service give a runner no job; False: it has one already, or may have."""
        ...

    def remove(self, remote: Remote) -> Talk[None]:
        """Have the service forget a runner."""
        ...

    def command(self, program: str, place: Place) -> tuple[str, ...]:
        """Return the command of a registered runner, given the path of its program."""
        ...

    def has_job(self, log: str) -> bool:
        """Whether the log of a runner's program tells that it has taken a job."""
        ...


def check(answer: Answer, what: str, *, known: tuple[int, ...] = (200,)) -> Answer:
    """Return an answer that has one of the `known` codes.

    Args:
        answer: the answer.
        what: what was asked for, for people.
        known: the codes that the conversation understands.

    Raises:
        ServiceError: it has another one.
    """
    if answer.status in known:
        return answer
    said = f"{what}: the service answers {answer.status}"
    if answer.status == 401:
        raise ServiceError(Fault.CREDENTIAL, f"{said}, it does not know the token")
    if answer.status == 403 and not answer.retry_after:
        raise ServiceError(Fault.FORBIDDEN, f"{said}, the token does not allow it")
    if answer.status == 404:
        raise ServiceError(Fault.NOT_FOUND, said)
    if answer.status in (403, 408, 429) or answer.status >= 500:
        raise ServiceError(Fault.BUSY, said, answer.retry_after)
    raise ServiceError(Fault.STRANGE, said)


def content(answer: Answer, what: str) -> dict[str, typing.Any]:
    """Return the JSON object in an answer.

    Raises:
        ServiceError: there is none.
    """
    try:
        found: object = json.loads(answer.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServiceError(Fault.STRANGE, f"{what}: the answer is no JSON object")
    return typing.cast("dict[str, typing.Any]", found)
