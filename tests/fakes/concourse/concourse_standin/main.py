# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command line: ``concourse --version``, ``concourse web``, ``concourse worker``, and more."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from .common import StandinError, log

VERSION = "8.3.0+standin"
# The form of its tables: there is only one.
SCHEMA = 1
FLAGS = {
    "web": {
        *("add-local-user", "bind-ip", "bind-port", "external-url", "gc-failed-grace-period"),
        *("container-placement-strategy", "garden-request-timeout", "main-team-local-user"),
        *("max-active-tasks-per-worker", "peer-address", "postgres-ca-cert", "postgres-database"),
        *("postgres-host", "postgres-password", "postgres-port", "postgres-socket"),
        *("postgres-sslmode", "postgres-user", "session-signing-key", "tsa-authorized-keys"),
        *("tsa-bind-port", "tsa-host-key"),
    },
    "worker": {
        *(
            "baggageclaim-bind-port",
            "bind-port",
            "baggageclaim-driver",
            "certs-dir",
            "containerd-bin",
            "containerd-dns-server",
        ),
        *("containerd-request-timeout", "ephemeral", "healthcheck-bind-ip"),
        *("healthcheck-bind-port", "max-active-tasks", "name", "resource-types", "tag"),
        *("tsa-host", "tsa-public-key", "tsa-worker-private-key", "work-dir"),
    },
    **{
        name: {"name", "tsa-host", "tsa-public-key", "tsa-worker-private-key"}
        for name in ("land-worker", "retire-worker")
    },
}


def main(argv: list[str]) -> int:
    """Run the stand-in; return the process's exit status."""
    if argv == ["--version"]:
        print(VERSION)
        return 0
    if argv[:1] == ["migrate"]:
        print(SCHEMA)
        return 0
    if not argv or argv[0] not in FLAGS:
        print(f"Please specify one command of: {', '.join(FLAGS)}", file=sys.stderr)
        return 1
    log("this is a stand-in for Concourse, not Concourse", version=VERSION)
    try:
        settings, tags = read_settings(argv[0], argv[1:], os.environ)
        # Imported here: each needs half a second of other people's packages.
        if argv[0] == "web":
            # The seconds of these imports are this stand-in's own, so a SIGHUP must not end it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            from .web import Web

            return asyncio.run(Web(settings).run())
        from .worker import Worker, leave

        if argv[0] != "worker":
            return asyncio.run(leave(settings, argv[0]))
        return asyncio.run(Worker(settings, tags).run())
    except StandinError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def read_settings(
    command: str, argv: list[str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Settings by flag name, and the tags, which may be given more than once.

    Concourse splits the environment's ``CONCOURSE_TAG`` at commas and takes a flag as it is.
    """
    if command == "worker":
        for name in environ:
            if name.startswith("CONCOURSE_GARDEN_"):
                raise StandinError(f"cannot use {name} with the containerd runtime: unset it")
    settings = {
        name.removeprefix("CONCOURSE_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("CONCOURSE_")
    }
    tags = [tag for tag in settings.pop("tag", "").split(",") if tag]
    given: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in FLAGS[command]:
            raise StandinError(f"unknown flag `{name}'")
        value = value if equals else next(words, None)
        if value is None:
            raise StandinError(f"expected argument for flag `--{name}'")
        if name == "tag":
            given.append(value)
        else:
            settings[name] = value
    return settings, given or tags
