# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options about Concourse's release, typed and validated. Pure."""

import dataclasses
import typing

from options import values as option_values
from options.readers import Readers, pattern, text

NAMES: typing.Final = (
    "concourse-version", "concourse-sha256", "release-mirror", "follow-web-version",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ReleaseOptions:
    """Which Concourse the operator wants, and from where.

    Attributes:
        version: `X.Y.Z`; a tarball that is a charm resource goes before it.
        sha256: of that version's tarball, in hex; empty: the charm must know it.
        mirror: base URL that has `v<version>/` below it, without a slash at its end; empty:
            upstream's own.
        follows_web: whether a worker takes the version of its web.
    """

    version: str = ""
    sha256: str = ""
    mirror: str = ""
    follows_web: bool = False


READERS: typing.Final[Readers] = {
    "version": lambda raw: pattern(
        raw, "concourse-version", r"[0-9]{1,3}(\.[0-9]{1,3}){2}", "is no release: use X.Y.Z"
    ),
    "sha256": lambda raw: pattern(
        raw, "concourse-sha256", r"(?:[0-9a-fA-F]{64})?", "is no SHA-256: use 64 hex digits"
    ).lower(),
    "mirror": lambda raw: option_values.url("release-mirror", text(raw, "release-mirror")),
    "follows_web": lambda raw: bool(raw.get("follow-web-version", False)),
}
