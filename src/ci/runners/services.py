# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CI services whose runners a machine can have: one line each."""

from ci.runners import gitea, github
from ci.runners.github_app import App
from ci.runners.service import Service
from ci.runners.settings import Settings


def make(settings: Settings) -> Service:
    """Return the service of these settings.

    Raises:
        ValueError: there is none of that name, or its credential lacks a field or is of no use.
    """
    credential = settings.credential
    if settings.service == gitea.NAME and "api-token" in credential:
        registration = credential.get("registration-token", "")
        return gitea.Gitea(settings.url, settings.scope, credential["api-token"], registration)
    if settings.service == github.NAME:
        found = credential.get("api-token")
        if credential.keys() >= {"app-id", "installation-id", "private-key"}:
            key = credential["private-key"]
            found = App(credential["app-id"], credential["installation-id"], key)
        if found:
            return github.GitHub(settings.url, settings.scope, found, settings.group)
    raise ValueError(f"no credential for the service {settings.service!r}")
