# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options about Concourse's release, typed and validated. Pure."""

import dataclasses
import typing

from ci.concourse.upstream import RELEASE, RELEASES, tarball
from options import values as option_values
from options.declaration import Group, Option
from options.part import Part
from options.readers import Raw, pattern, text


@dataclasses.dataclass(frozen=True)
class ReleaseOptions:
    """The Concourse that the operator chose, and where to download it.

    Attributes:
        chosen: version, `X.Y.Z`, and SHA-256 of its tarball in hex. An empty version: the charm
            chooses. An empty checksum: the charm must know it.
        mirror: base URL that has `v<version>/` below it, without a slash at its end; empty:
            upstream's own.
    """

    chosen: tuple[str, str]
    mirror: str


def _chosen(raw: Raw) -> tuple[str, str]:
    allowed = r"([0-9]{1,3}(\.[0-9]{1,3}){2}(@sha256:[0-9a-fA-F]{64})?)?"
    remedy = "is not a release: use X.Y.Z, or X.Y.Z@sha256:<64 hex digits>"
    version, _, sha256 = pattern(raw, "concourse-version", allowed, remedy).partition("@sha256:")
    return version, sha256.lower()


_EXAMPLE: typing.Final = tarball(RELEASE, "amd64")

OPTIONS: typing.Final = (
    Option(
        "concourse-version",
        default="",
        text=(
            "Concourse release to run: `X.Y.Z`, or `X.Y.Z@sha256:<SHA-256 of its tarball>` if the "
            "charm does not know the checksum of the release. Empty: a worker runs the release "
            "that its related web runs; a web, or a worker without a related web, runs "
            f"{RELEASE}. The resource `concourse` takes precedence. Before a change of the "
            "release the charm waits for running builds as drain-timeout says."
        ),
        group=Group.RELEASE,
        part=Part.RELEASE,
        field="chosen",
        read=_chosen,
    ),
    Option(
        "concourse-mirror",
        default="",
        text=(
            f"Base URL of a mirror of Concourse's releases, https or http, with {_EXAMPLE} and so "
            f"on below it. The charm uses a file only if its checksum is right. Empty: {RELEASES}."
        ),
        group=Group.RELEASE,
        part=Part.RELEASE,
        field="mirror",
        read=lambda raw: option_values.url("concourse-mirror", text(raw, "concourse-mirror")),
    ),
)
