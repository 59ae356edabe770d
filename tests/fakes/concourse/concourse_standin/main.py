# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command line: ``concourse --version``, ``migrate``, ``web`` and ``worker``."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from .common import StandinError, log

VERSION = "8.3.0+standin"
# The form of its tables: there is only one.
SCHEMA = 1


def main(argv: list[str]) -> int:
    """Run the stand-in; return the process's exit status."""
    if argv == ["--version"]:
        print(VERSION)
        return 0
    if argv[:1] == ["migrate"]:
        print(SCHEMA)
        return 0
    if argv[:1] not in (["web"], ["worker"]):
        print("Please specify one command of: web, worker", file=sys.stderr)
        return 1
    log("this is a stand-in for Concourse, not Concourse", version=VERSION)
    try:
        settings, tags = read_settings(argv[1:], os.environ)
        # Imported here: each needs half a second of other people's packages.
        if argv[0] == "web":
            # The seconds of these imports are this stand-in's own, so a SIGHUP must not end it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            from .web import Web

            return asyncio.run(Web(settings).run())
        from .worker import Worker

        return asyncio.run(Worker(settings, tags).run())
    except StandinError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def read_settings(argv: list[str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Settings of the environment by flag name, and the tags, which alone are flags here.

    Concourse splits the environment's ``CONCOURSE_TAG`` at commas and takes a flag as it is.
    """
    settings = {
        name.removeprefix("CONCOURSE_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("CONCOURSE_")
    }
    tags = [tag for tag in settings.pop("tag", "").split(",") if tag]
    given: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--tag":
            raise StandinError(f"unknown flag `{name.removeprefix('--')}'")
        given.append(value if equals else next(words, ""))
    return settings, given or tags
