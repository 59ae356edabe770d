# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""All options of Concourse. Pure."""

import dataclasses
import typing

from ci.concourse.options import release, web, worker
from ci.concourse.upstream import TAKEN_PORTS
from options import readers
from options.declaration import CiOptions, Read
from options.readers import Raw, text
from options.table import MODES, Options


@dataclasses.dataclass(frozen=True)
class ConcourseOptions:
    """The options of Concourse after validation."""

    release: release.ReleaseOptions
    worker: worker.WorkerOptions
    web: web.WebOptions


def chosen(options: Options) -> ConcourseOptions:
    """Return Concourse's options of a unit that runs Concourse."""
    return typing.cast(ConcourseOptions, options.ci)


def _make(read: Read) -> ConcourseOptions:
    return ConcourseOptions(
        release=release.ReleaseOptions(**read(release.OPTIONS)),
        worker=worker.WorkerOptions(**read(worker.OPTIONS)),
        web=web.WebOptions(**read(web.OPTIONS)),
    )


def _ports(raw: Raw) -> tuple[int, ...]:
    """Return the ports that Concourse takes on this machine; those of a web on a web only."""
    has_web = text(raw, "deployment-mode") in ("web", "all")
    port = readers.whole(text(raw, "web-port")) if has_web else None
    return TAKEN_PORTS if port is None else (*TAKEN_PORTS, port)


OPTIONS: typing.Final = CiOptions(
    name="concourse",
    text="a worker or web of Concourse",
    modes=MODES,
    declared=(*worker.OPTIONS, *release.OPTIONS, *web.OPTIONS),
    make=_make,
    ports=_ports,
)
