# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The calls by which hooks look at Concourse on a machine; they change nothing."""

import collections.abc
import dataclasses

from ci.concourse import service
from ci.concourse.api import worker_view
from ci.concourse.plan.model import Rivals
from ci.concourse.web import health, web
from ci.concourse.worker import rivals, worker
from gpu_agent.runtime import task_mounts
from host import network
from plan.network import Interface
from relations.worker_view import Sight

Call = collections.abc.Callable


@dataclasses.dataclass(frozen=True)
class Looks:
    """The calls by which a hook looks at Concourse; the defaults are the real ones.

    A test hands in answers.

    Attributes:
        worker_name: the worker's name in web; empty without a worker.
        worker_runs: whether the worker's process runs.
        is_connected: whether web can give the worker jobs.
        has_tag: whether the worker has a tag.
        copies_volumes: whether the worker copies volumes.
        trusted: the host keys that the worker's process trusts; None: it is not known.
        rivals: other programs that manage containers.
        web_is_set_up: whether web is set up here.
        web_runs: whether web answers.
        authorized: the keys of workers that web lets in.
        peer_address: the address at which other webs reach this one.
        metrics_port: the port of web's metrics; None: there are none.
        url: the URL of web; None without a web.
        lost_database: the database that web cannot reach, and why.
        interfaces: the network interfaces.
        folder: why tasks are refused because of a folder of the option task-mounts.
        failing: the services that keep ending by themselves.
        taken: the services that lack a port, since another program has it.
        sights: how web sees workers; takes names and digests of tags.
        wrong_for: since how many seconds web has not seen this unit's worker as planned.
    """

    worker_name: Call[[], str] = worker.name
    worker_runs: Call[[], bool] = worker.healthy
    is_connected: Call[[], bool] = worker.is_connected
    has_tag: Call[[str], bool] = worker.has_tag
    copies_volumes: Call[[], bool] = worker.copies_volumes
    trusted: Call[[], tuple[str, ...] | None] = worker.trusted
    rivals: Call[[], Rivals] = rivals.look
    web_is_set_up: Call[[], bool] = web.is_set_up
    web_runs: Call[[], bool] = web.healthy
    authorized: Call[[], frozenset[str]] = web.authorized
    peer_address: Call[[], str] = web.peer_address
    metrics_port: Call[[], int | None] = web.metrics_port
    url: Call[[], str | None] = web.url
    lost_database: Call[[], str] = health.lost_database
    interfaces: Call[[], tuple[Interface, ...]] = network.interfaces
    folder: Call[[], str] = task_mounts.refused
    failing: Call[[], tuple[tuple[str, int], ...]] = service.failing
    taken: Call[[], tuple[tuple[str, int], ...]] = service.taken
    sights: Call[[collections.abc.Mapping[str, str]], dict[str, Sight] | None] = worker_view.look
    wrong_for: Call[..., float] = worker_view.wrong_for
