# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The Concourse worker of this machine: its keys, settings, service, retirement and removal."""

import collections.abc
import contextlib
import functools
import logging
import pathlib
import re
import time
import typing

from ci.concourse import release, service
from ci.concourse.plan.model import WorkerPlan
from ci.concourse.restart import lossless as restart
from ci.concourse.restart import running_steps as steps
from ci.concourse.upstream import HEALTH_PORT
from ci.concourse.worker import connection, former, launcher, leftovers, volumes
from ci.concourse.worker import delete_worker as farewell
from ci.concourse.worker import keys as worker_keys
from ci.concourse.worker import ports as worker_ports
from ci.concourse.worker import trusted_cas as certificates
from ci.concourse.worker import watchdog as worker_watch
from ci.concourse.worker.departure import Departure
from ci.concourse.worker.former import Former
from ci.concourse.worker.keys import WorkerKeys
from machine import files, process, templates
from machine import polling as waiting
from machine import systemd as services
from machine import systemd_escaping as escaping

SERVICE: typing.Final = "concourse-worker.service"
# Has the machine's end wait for no container.
_END: typing.Final = "concourse-worker-end.service"
HOME: typing.Final = pathlib.Path("/var/lib/concourse")
WORK_DIR: typing.Final = HOME / "worker"
# Where baggageclaim, Concourse's part for volumes, has all its mounts.
VOLUMES: typing.Final = WORK_DIR / "volumes"

_ENVIRONMENT: typing.Final = service.CONFIG / "worker.env"
_TSA_KEYS: typing.Final = service.KEYS / "tsa_host_key.pub"
_START: typing.Final = 30.0  # seconds; it takes 3 to 5, on a busy machine more
# Seconds to wait for a connection to web. A worker that was turned away dials again after 5 (8.3.0
# worker/beacon_runner.go), and has to last for 2; web may take longer to hear of a new one's key.
_DIALS: typing.Final = 12.0
_CONNECT: typing.Final = 30.0
# In seconds: how long builds may take whose results web takes no more.
FAREWELL_SECONDS: typing.Final = 30
_STOP: typing.Final = 20.0  # seconds for each SIGTERM; web answers in one, or is not there

# Without a route Concourse can't find an MTU and refuses to start (8.2.5
# worker/workercmd/containerd.go:314-324); this is Ethernet's.
_MTU: typing.Final = 1500

_log = logging.getLogger(__name__)


def trusted() -> tuple[str, ...] | None:
    """The host keys of webs that the worker trusts; None while it runs with older settings."""
    revision = service.setting(_ENVIRONMENT, "GPUCI_REVISION") or ""
    if services.main_pid(SERVICE) and not service.runs_with(SERVICE, revision):
        return None
    return tuple((files.read_text(_TSA_KEYS) or "").splitlines())


def apply(
    plan: WorkerPlan, keys: WorkerKeys, progress: collections.abc.Callable[[str], None]
) -> bool:
    """Run the worker as planned; restart it only if something that it reads has changed.

    That includes the release and the launcher of its containerd. Builds survive a restart, which
    `progress` reports, and which is waited for up to 30 seconds. Builds do not survive a change of
    the volume driver: then the worker is removed from web and set up again.

    Args:
        plan: how it is to run.
        keys: its keys.
        progress: told what takes long.

    Returns:
        Whether anything had to be changed.

    Raises:
        machine.process.CommandError: if systemd can't start it.
    """
    keys.ensure(plan.private_key)
    driver = _former().make_way(plan.team, progress)
    # Containers in a user namespace of their own reach their root file system through these.
    for folder in (HOME, WORK_DIR, VOLUMES):
        files.ensure_directory(folder)
    tsa_keys = "".join(f"{key}\n" for key in plan.tsa_public_keys)
    content, before = _unit(plan.tags), tags()
    runc = f"{release.CURRENT}/bin/runc --root={leftovers.RUNC_STATE}"
    end = templates.render(service.TEMPLATES, _END, tasks=steps.TASKS, runc=runc)
    wrote = files.ensure_file(_TSA_KEYS, tsa_keys, mode=0o600)
    wrote |= worker_ports.ensure()
    wrote |= services.ensure_unit(_END, end, boot=False)
    wrote |= services.ensure_unit(SERVICE, content) | worker_watch.ensure(HEALTH_PORT)
    had = service.setting(_ENVIRONMENT, "CONCOURSE_CERTS_DIR") or ""
    revision, new = service.ensure_settings(
        _ENVIRONMENT,
        "worker.env",
        settings(plan, keys, driver, functools.partial(certificates.ensure, had=had)),
        content,
        tsa_keys,
        files.read_text(keys.private) or "",
        str(release.CURRENT.resolve()),
        worker_ports.program(),
        files.read_text(launcher.PATH) or "" if plan.wrapped else "",
    )
    wrote |= new
    if service.runs_with(SERVICE, revision):
        return wrote
    progress("Starting the Concourse worker")
    _log.info("the worker starts with %s", what_differs(before, plan.tags))
    restart.worker(SERVICE, VOLUMES, progress)
    waiting.until(healthy, _START)
    return True


def what_differs(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    """Return the cause of a start of the worker, given its tags before and now."""
    if before == now:
        return "other settings, another release or containerd's launcher"
    return f"other tags: {', '.join(now)}; before: {', '.join(before) or 'none'}"


def name() -> str:
    """The name of the worker that was set up here, as web knows it; empty if none was."""
    return service.setting(_ENVIRONMENT, "CONCOURSE_NAME") or ""


def has_tag(tag: str) -> bool:
    """Whether the worker's service registers this tag with web."""
    return tag in tags()


def tags(
    show: collections.abc.Callable[[str, str], dict[str, str]] = services.show,
) -> tuple[str, ...]:
    """The tags of the worker that was set up here.

    Args:
        show: returns what systemd shows of a service, by the property's name.
    """
    started = show(SERVICE, "ExecStart").get("ExecStart", "").split()
    return tuple(word[len("--tag=") :] for word in started if word.startswith("--tag="))


def volume_driver(root: pathlib.Path = pathlib.Path("/")) -> str:
    """How the worker that was set up here keeps its volumes; empty if none was."""
    return former.driver(root / str(_ENVIRONMENT).lstrip("/"))


def copies_volumes() -> bool:
    """Whether the worker that was set up here copies volumes, as where no overlay works."""
    return volume_driver() == volumes.NAIVE


def healthy() -> bool:
    """Whether the worker's container runtime and volumes answer, within a second."""
    return service.answers(HEALTH_PORT, "/")


def is_connected() -> bool:
    """Whether web has let this worker in and can give it work; waits for that for a while.

    Raises:
        OSError: its connections can't be looked at.
    """
    hosts = service.setting(_ENVIRONMENT, "CONCOURSE_TSA_HOST")
    shown = services.show(SERVICE, "MainPID", "ExecMainStartTimestampMonotonic")
    pid = int(shown["MainPID"] or 0)
    if not hosts or not pid:
        return False
    age = time.monotonic() - int(shown["ExecMainStartTimestampMonotonic"]) / 1e6
    patience = max(_CONNECT - age, _DIALS)
    return connection.lasts(pid, tuple(hosts.split(",")), patience)


def retire(timeout: float, progress: collections.abc.Callable[[str], None]) -> bool:
    """Let the worker finish its builds and leave the cluster; it is not started again.

    What SIGUSR2 and then SIGTERM do is in 8.2.5 worker/beacon.go:118-169. Web deletes a worker
    that retires; one whose key it takes no more waits for that in vain.

    Args:
        timeout: how long the builds may take, in seconds; then it leaves without them, and at
            the latest FAREWELL_SECONDS after web was seen to refuse its key, or to have no
            connection to it any more.
        progress: told what is waited for.

    Returns:
        Whether it ran.
    """
    pid = services.main_pid(SERVICE)
    if not pid:
        _delete_row()
        return services.ensure_disabled(SERVICE)
    services.ensure_not_enabled(SERVICE)
    services.signal(SERVICE, "SIGUSR2")
    Departure(
        ends=lambda seconds: _wait_until_gone(pid, seconds),
        is_heard=lambda: not _tsas().refuse() and _may_have_web(),
        alone=FAREWELL_SECONDS,
    ).wait(timeout, progress)
    for _ in range(2):
        # The first deletes it from the cluster at once, the second ends what still drains.
        if _runs(pid):
            services.signal(SERVICE, "SIGTERM")
            _wait_until_gone(pid, _STOP)
    return services.ensure_disabled(SERVICE)


def _tsas() -> farewell.Tsas:
    hosts = service.setting(_ENVIRONMENT, "CONCOURSE_TSA_HOST")
    known = hosts.split(",") if hosts else []
    return farewell.Tsas(known, trusted() or (), str(worker_keys.PRIVATE))


def _delete_row() -> None:
    """Have web forget a worker that has landed or does not run; else it stays in its list."""
    if name():
        team = service.setting(_ENVIRONMENT, "CONCOURSE_TEAM") or ""
        # No web is no reason to stay.
        _tsas().delete({"name": name(), "team": team})


def main_pid() -> int:
    """The worker's process id; 0 if it does not run."""
    return services.main_pid(SERVICE)


def land() -> int:
    """Have no step begin on the worker any more, and no boot start it; return its process id.

    SIGUSR1 has it tell web so. Its process ends by itself when all builds that have something on
    it are over (8.3.0 atc/db/worker_lifecycle.go); web keeps it as `landed`. Where web does not
    hear, it is not told now: it would end at once (worker/beacon_runner.go), under its builds.
    """
    services.ensure_not_enabled(SERVICE)
    if _may_have_web():
        services.signal(SERVICE, "SIGUSR1")
    return main_pid()


def halt() -> bool:
    """End the worker's process; its builds run on without it. Return True if it ran."""
    return services.ensure_stopped(SERVICE)


def take_up(progress: collections.abc.Callable[[str], None]) -> None:
    """Have a worker that lands, or has landed, take steps again; its builds live through it.

    Raises:
        machine.process.CommandError: if systemd can't start it.
        OSError: what runs can't be looked at.
    """
    services.ensure_enabled(SERVICE)
    if name():
        restart.worker(SERVICE, VOLUMES, progress)
        waiting.until(healthy, _START)


def _may_have_web() -> bool:
    with contextlib.suppress(OSError):
        return is_connected()
    return True


def remove() -> bool:
    """Remove the worker and all that it left: containers, mounts, network, files.

    The release must still be there: its runc ends the containers.

    Returns:
        Whether anything was there.
    """
    removed = worker_watch.remove()
    removed |= services.remove_unit(SERVICE)
    removed |= services.remove_unit(_END)
    removed |= worker_ports.remove()
    removed |= _former().remove_work()
    for path in (_ENVIRONMENT, _TSA_KEYS, *worker_keys.FILES):
        removed |= files.ensure_absent(path)
    for folder in (WORK_DIR, HOME):
        removed |= files.remove_if_empty(folder)
    removed |= connection.forget()
    removed |= certificates.remove()
    return service.remove_empty_folders() or removed


def _former() -> Former:
    return Former(_ENVIRONMENT, WORK_DIR, FAREWELL_SECONDS, retire)


def _unit(tags: tuple[str, ...]) -> str:
    # As arguments, because in a variable Concourse would split a tag at its commas.
    arguments = [str(release.CURRENT / "bin/concourse"), "worker"]
    command = " ".join([*arguments, *(escaping.exec_argument(f"--tag={tag}") for tag in tags)])
    return templates.render(
        service.TEMPLATES,
        SERVICE,
        command=command,
        environment=_ENVIRONMENT,
        volumes=VOLUMES,
        end=_END,
        **worker_ports.commands(SERVICE),
    )


def settings(
    plan: WorkerPlan,
    keys: WorkerKeys,
    driver: str,
    trust: collections.abc.Callable[[str], str],
) -> dict[str, typing.Any]:
    """Return what templates/worker.env shows.

    Args:
        plan: the worker's.
        keys: its keys.
        driver: how it keeps volumes.
        trust: makes the folder of certificates for checks, gets and puts, with the operator's in
            it. It returns the folder's path; empty: they trust the machine's own.
    """
    return {
        "name": plan.name,
        "work_dir": str(WORK_DIR),
        "volume_driver": driver,
        "tsa_hosts": ",".join(plan.tsa_hosts),
        "tsa_public_key": str(_TSA_KEYS),
        "private_key": str(keys.private),
        "containerd": str(launcher.PATH) if plan.wrapped else "",
        "request_timeout": plan.request_timeout,
        "max_active_tasks": plan.max_active_tasks,
        "dns_servers": ",".join(plan.settings.dns_servers or _name_servers()),
        "mtu": plan.settings.mtu or (0 if _has_default_route() else _MTU),
        "team": plan.team,
        "max_containers": plan.settings.max_containers,
        "certificates": trust(plan.certificates),
        "proxies": process.proxies(),
    }


def _name_servers() -> tuple[str, ...]:
    """Name servers for containers where Concourse would find none by itself.

    It leaves out those at 127.x, which a container can't reach. Releases before 8.2 then have none
    (Ubuntu's systemd-resolved is at 127.0.0.53), newer ones ask systemd-resolved for its own
    (8.2.5 worker/runtime/resolvconf_parser.go) and else need a route.
    """
    if _reachable("/etc/resolv.conf"):
        return ()
    upstream = _reachable("/run/systemd/resolve/resolv.conf")
    return upstream or (() if _has_default_route() else ("127.0.0.1",))


def _reachable(resolv_conf: str) -> tuple[str, ...]:
    text = files.read_text(pathlib.Path(resolv_conf)) or ""
    servers = re.findall(r"^\s*nameserver\s+(\S+)\s*$", text, re.MULTILINE)
    return tuple(server for server in servers if not server.startswith("127.") and server != "::1")


def _has_default_route() -> bool:
    table = files.read_text(pathlib.Path("/proc/net/route")) or ""
    return any(line.split()[1:2] == ["00000000"] for line in table.splitlines())


def _runs(pid: int) -> bool:
    return services.main_pid(SERVICE) == pid


def _wait_until_gone(pid: int, seconds: float) -> bool:
    return waiting.until(lambda: not _runs(pid), seconds)
