# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ask a CI service which release of the runner's program it wants now.

GitHub gives no jobs to a runner that misses a release for a month, so no release can be pinned.
Gitea serves every release, and names none.
"""

import os
import typing

from ci.runners import github, http, services
from ci.runners.options import Download, RunnersOptions
from ci.runners.service import ServiceError
from ci.runners.settings import Settings
from machine.errors import PartError

_SECONDS: typing.Final = 30.0
# By what the kernel calls the machine (uname(2)); GitHub's names of them.
_MACHINES: typing.Final = {"x86_64": "x64", "aarch64": "arm64"}


class ReleaseError(PartError):
    """The release cannot be had; the text says why and what to do."""

    passes = True


def wanted(service: str, own: RunnersOptions) -> Download:
    """Return the release that a service wants now; nothing if it names none.

    Args:
        service: its name in settings.
        own: the options of the runners.

    Raises:
        ReleaseError: it does not answer, or names a release without a checksum.
    """
    if service != github.NAME or not (own.url and own.scope and own.credential):
        return Download()
    found = services.make(
        Settings(service, own.url, own.scope, dict(own.credential), "", "", 0, 0, group=own.group)
    )
    assert isinstance(found, github.GitHub)  # noqa: S101  services.make says so by the name
    try:
        release = http.talk(
            found.url, found.program(_MACHINES.get(os.uname().machine, "")), _SECONDS
        )
    except ServiceError as error:
        raise ReleaseError(
            f"GitHub does not say which program its runners must be: {error}. The next event "
            "asks again; or attach it as the resource runner"
        ) from error
    if not release.sha256:
        raise ReleaseError(
            f"GitHub names no checksum for the runner {release.version}: set runner-download="
            f"{release.url}@sha256:<its checksum, see the notes of the release>"
        )
    return Download(release.url, release.sha256)
