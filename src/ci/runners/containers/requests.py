# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Requests of Docker's API: mark what a job makes as the job's own. Pure.

Containers get a label and the runner's control group, networks and volumes a label. No other
request is changed.
"""

import collections.abc
import dataclasses
import json
import re
import typing

from ci.runners.containers.engine import LABEL

LONGEST: typing.Final = 64 << 10
"""The most bytes of the head of a request."""

_LONGEST_BODY: typing.Final = 16 << 20  # bytes
_MADE: typing.Final = re.compile(r"(?:/v[0-9.]+)?/(containers|networks|volumes)/create")
_OTHER_API: typing.Final = re.compile(r"(?:/v[0-9.]+)?/libpod/")

Body = dict[str, typing.Any]


class BadRequestError(Exception):
    """A request is not passed on; the text says why.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Head:
    """The head of a request.

    Attributes:
        method: such as `POST`.
        target: the path, with its query.
        version: such as `HTTP/1.1`.
        fields: names and values, in their order.
    """

    method: str
    target: str
    version: str
    fields: tuple[tuple[str, str], ...]

    def field(self, name: str) -> str:
        """Return the value of a field; empty if it is missing."""
        return next((value for key, value in self.fields if key.lower() == name), "")

    @property
    def makes(self) -> str:
        """What the request makes: `containers`, `networks`, `volumes`, or nothing."""
        found = _MADE.fullmatch(self.target.partition("?")[0])
        return found.group(1) if found and self.method == "POST" else ""

    def as_bytes(self, length: int | None = None) -> bytes:
        """Return the head for the engine.

        Unless the connection becomes another protocol's, the engine closes it after its answer: so
        a later request comes by a new one, and is seen.

        Args:
            length: of a new body; None: the body stays.
        """
        fields = [*self.fields]
        if not self.field("upgrade"):
            fields = [one for one in fields if one[0].lower() != "connection"]
            fields.append(("Connection", "close"))
        if length is not None:
            fields = [one for one in fields if one[0].lower() != "content-length"]
            fields.append(("Content-Length", str(length)))
        lines = [f"{self.method} {self.target} {self.version}"]
        lines += [f"{name}: {value}" for name, value in fields]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def parse(text: bytes) -> Head:
    """Read the head of a request, with its empty line.

    Raises:
        BadRequestError: it is none, or of an API that is not served.
    """
    first, *lines = text.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(400, "this is not a request of HTTP/1")
    fields = [line.partition(":")[::2] for line in lines]
    head = Head(*words, fields=tuple((name, value.strip()) for name, value in fields))
    if _OTHER_API.match(head.target):
        raise BadRequestError(501, "jobs have Docker's API, and not podman's own: use docker")
    return head


def length(head: Head) -> int:
    """Return the length of the body of a request that makes something.

    Raises:
        BadRequestError: it is unknown or too long.
    """
    said = head.field("content-length")
    if not re.fullmatch("[0-9]{1,9}", said):
        raise BadRequestError(411, "the length of this request is not known")
    if int(said) > _LONGEST_BODY:
        raise BadRequestError(413, "this request is too long")
    return int(said)


def marked(kind: str, body: bytes, name: str, place: Body) -> Body:
    """Return the body of a request with the job's marks.

    Args:
        kind: what it makes, as Head.makes.
        body: the request's, in JSON.
        name: the name of the job's runner.
        place: what of a container's HostConfig is not the job's to choose.

    Raises:
        BadRequestError: it is no such body.
    """
    try:
        found: object = json.loads(body or b"{}")
    except ValueError as error:
        raise BadRequestError(400, f"the body of this request is not JSON: {error}") from error
    whole = _object(found, "the body")
    whole["Labels"] = {**_object(whole.get("Labels") or {}, "Labels"), LABEL: name}
    if kind == "containers":
        host = _object(whole.get("HostConfig") or {}, "HostConfig")
        whole["HostConfig"] = {**host, **place}
    return whole


def volumes(container: Body) -> collections.abc.Iterator[Body]:
    """Yield what makes the named volumes of a container, with its marks.

    An engine makes them with the container, and without a label. This changes no volume that is
    there already.
    """
    host = _object(container["HostConfig"], "HostConfig")
    names = [str(bind).partition(":")[0] for bind in host.get("Binds") or ()]
    for mount in (_object(one, "a mount") for one in host.get("Mounts") or ()):
        options = _object(mount.get("VolumeOptions") or {}, "VolumeOptions")
        if mount.get("Type") == "volume" and not options.get("DriverConfig"):
            names.append(str(mount.get("Source") or ""))
    mark = {LABEL: container["Labels"][LABEL]}
    for volume in dict.fromkeys(name for name in names if name and name[0] not in "/.~"):
        yield {"Name": volume, "Driver": host.get("VolumeDriver") or "local", "Labels": mark}


def _object(found: object, what: str) -> Body:
    if not isinstance(found, dict):
        raise BadRequestError(400, f"{what} is not a JSON object")
    return typing.cast("Body", found)
