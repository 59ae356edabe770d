# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Serve one call of the runtime `gpu-ci` by podman or Docker.

A container without a request goes to runc, without any GPU that the engine may have put into it.
A container with a request gets a lease, or is refused with a message in the log and on stderr,
because a person waits. The process is always replaced and never forks, as in task_call.
"""

from __future__ import annotations

import os
import sys

from gpu_runtime import container_spec as spec
from gpu_runtime import decision_log as journal
from gpu_runtime import (
    engine_client,
    engine_metadata,
    engine_request,
    engine_spec,
    rootfs,
    task_call,
)
from gpu_runtime import lease_manager as broker
from gpu_runtime import policy as policies
from gpu_runtime import refusal as refuse
from gpu_runtime import runc_arguments as arguments
from gpu_runtime.decision_log import Decision
from gpu_runtime.device_nodes import Nodes
from gpu_runtime.fast_json import SPEC
from gpu_runtime.holder_usage import Host
from gpu_runtime.json_files import read_object, replace
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import CONTAINER, NOUNS, readable
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_runtime.engine_metadata import Facts
    from gpu_runtime.policy import Policy

_NOUN = NOUNS[CONTAINER]
# The longest wait of a container, in seconds, by its engine. podman holds its lock during the
# wait: `podman ps` waits too, Ctrl-C has no effect, and podman gives up after 240 s (podman 3 to 5
# libpod/define/config.go ContainerCreateTimeout). Unknown engines get the same limit. Docker has
# none.
_PATIENCE = {engine_metadata.PODMAN: 60, "": 60}


class Paths:
    """The paths that the shell script `gpu-ci` passes.

    Attributes:
        runc: the runtime that makes containers.
        policy: policy.json.
        store: the folder of leases.
        home: the folder of that script.
        log: the operators' log.
        config_home: the folder of the NVIDIA runtime's private configuration for engines.
    """

    __slots__ = ("config_home", "home", "log", "policy", "runc", "store")

    def __init__(
        self, runc: str, policy: str, store: str, home: str, log: str, config_home: str
    ) -> None:
        self.runc = runc
        self.policy = policy
        self.store = store
        self.home = home
        self.log = log
        self.config_home = config_home


def main(argv: list[str]) -> None:
    """Serve a call: `--engine`, the six Paths, then the runtime's arguments. Never returns."""
    paths, words = Paths(*argv[1:7]), argv[7:]
    call = arguments.parse(words)
    log = call.options.get("log", os.devnull)
    refuse.report_crashes(log)
    decision = Decision(call.container)
    try:
        runtime = _serve(paths, call, decision)
        decision.write(paths.log)
        if runtime:
            environment = task_call.nvidia_environment(paths.config_home, paths.home)
            task_call.become(runtime, words, environment, _NOUN)
        task_call.become(paths.runc, words, task_call.own_environment(), _NOUN)
    except Refused as refusal:
        decision.refuse(refusal)
        decision.write(paths.log)
        refuse.write(log, refusal.code, str(refusal))
        sys.stderr.write(f"gpu-ci-worker: {refusal.code}: {refusal}\n")
        sys.exit(1)


def _serve(paths: Paths, call: arguments.Call, decision: Decision) -> str:
    """Edit the bundle of a call; return the NVIDIA runtime if that is next, or an empty string."""
    if not call.container:
        return ""  # runc refuses it
    try:
        if call.command in {"create", "run", "restore"}:
            return _start(paths, call, decision)
        if call.command == "exec" and Store(paths.store).has(call.container):
            _exec(paths, call, decision)
    except (OSError, ValueError) as error:
        if call.command != "exec" and not decision.kind:
            raise Refused(
                "worker-fault",
                f"cannot read the configuration of this container: {refuse.fault(error, _NOUN)}",
            ) from error
        raise Refused(
            "worker-fault", f"{refuse.failed(_NOUN)}: {refuse.fault(error, _NOUN)}"
        ) from error
    return ""


def _start(paths: Paths, call: arguments.Call, decision: Decision) -> str:
    bundle = os.path.abspath(call.options.get("bundle", "."))
    path = f"{bundle}/config.json"
    try:
        config = read_object(path, SPEC)
    except FileNotFoundError:
        return ""  # runc says it best
    facts = engine_metadata.read(config, bundle, call.container)
    policy, unreadable = _policy_for(paths)
    nodes = Nodes(policy)
    privileged = engine_spec.is_privileged(config)
    wanted = engine_request.read(config, facts, nodes, privileged=privileged)
    brought = engine_metadata.cdi_paths() if wanted else set[str]()
    bare = engine_spec.without_gpus(config, nodes, brought)
    if not wanted:
        _forget(paths, call.container)
        if bare is not config:
            replace(path, bare, like=path)
        return ""
    decision.kind = " ".join(filter(None, (facts.engine, "container")))
    decision.who = readable(facts.who(call.container))
    if unreadable:
        raise unreadable
    _check(policy, call, privileged=privileged, rootless=bool(os.geteuid()) or _is_nested())
    assert policy  # noqa: S101  _check refuses without one
    decision.asked, named = engine_request.devices(wanted, policy, nodes)
    decision.named = named
    if policy.vendor.by_runtime:
        rootfs.check_files(config, bundle, _NOUN)
    request = _request(call, bundle, spec.cgroups_path(config))
    request.who, request.named = facts.who(call.container), named
    variables = engine_request.variables(config.get("process"), facts)
    request.unfit = task_call.unfit(policy, variables, config, bundle)
    return _grant(
        paths, _Made(config=bare, path=path, nodes=nodes, facts=facts), request, decision
    )


class _Made:
    """A container that is about to be created."""

    __slots__ = ("config", "facts", "nodes", "path")

    def __init__(
        self, *, config: dict[str, object], path: str, nodes: Nodes, facts: Facts
    ) -> None:
        self.config = config
        self.path = path
        self.nodes = nodes
        self.facts = facts


def _grant(paths: Paths, made: _Made, request: broker.Request, decision: Decision) -> str:
    store, host = Store(paths.store), Host()
    policies_now = _policies(paths, _PATIENCE.get(made.facts.engine))
    grant = broker.lend(store, host, policies_now, request, decision)
    if grant is None:
        told = engine_client.check
        grant = broker.acquire(store, host, policies_now, request, decision, told=told)
    journal.intruders(paths.log, host.intruders, grant.ids)
    try:
        policy = next(policies_now)
        own = [
            one
            for device in policy.devices
            if device.id in grant.ids
            for one in made.nodes.of(device)
        ]
        variables = engine_request.variables(made.config.get("process"), made.facts)
        changed = engine_spec.granted(
            made.config, grant, variables, made.nodes, own, os.uname().machine
        )
        replace(made.path, changed, like=made.path)
    except (OSError, ValueError, Refused):
        broker.undo(store, host, request)
        raise
    return policy.nvidia_runtime if policy.vendor.by_runtime else ""


def _exec(paths: Paths, call: arguments.Call, decision: Decision) -> None:
    """Give a process the variables of its container's lease."""
    path = call.options.get("process", "")
    store, host = Store(paths.store), Host()
    try:
        bundle = store.record(call.container).bundle
        decision.kind = "exec"
        record = broker.resume(store, host, lambda: _policy(paths), decision)
        if path:
            process = read_object(path, SPEC)
            facts = engine_metadata.read(
                read_object(f"{bundle}/config.json"), bundle, call.container
            )
            variables = engine_request.variables(process, facts)
            told = spec.with_variables(process, variables, record.environment, record.gpus)
            replace(path, spec.in_groups(told, record.groups), like=path)
    except FileNotFoundError:
        decision.kind = ""  # swept meanwhile, or runc says it best


def _check(
    policy: Policy | None, call: arguments.Call, *, privileged: bool, rootless: bool
) -> None:
    """Check that this machine gives GPUs to containers of this kind.

    Args:
        policy: the policy; None: no container gets a GPU.
        call: the engine's call.
        privileged: whether the container is privileged.
        rootless: whether the engine runs as another user than root, or in a user namespace.

    Raises:
        Refused: it gives none.
    """
    if rootless:
        raise Refused(
            "rootless-engine",
            "containers of a rootless engine get no GPU on this machine, because their user "
            "cannot take a lease. Run the container as root: sudo podman, or the machine's own "
            "Docker",
        )
    if policy is None:
        raise Refused(
            "gpus-disabled",
            "containers on this machine get no GPU: enable-gpu is false, or gpu-device-ids allows "
            "none. Ask the machine's operator",
        )
    if call.command != "create":
        raise Refused(
            "start-unsupported",
            f"GPUs are not supported with `{call.command}`. Use create and start, as podman and "
            "Docker do",
        )
    if privileged and not policy.privileged:
        raise Refused(
            "privileged-not-allowed",
            "privileged containers get no GPU on this machine, because nothing can block its "
            "other GPUs. Remove --privileged, or ask the machine's operator for "
            "gpu-for-privileged-tasks=true",
        )
    runtime = policy.nvidia_runtime
    if policy.vendor.by_runtime and not os.access(runtime, os.X_OK):
        raise task_call.no_runtime(runtime, _NOUN)


def _is_nested() -> bool:
    """Whether this process runs in a user namespace of its own.

    In an unprivileged LXD container all programs share one user namespace; that does not count.
    """
    with open("/proc/self/uid_map") as own, open("/proc/1/uid_map") as first:
        return own.read() != first.read()


def _policy_for(paths: Paths) -> tuple[Policy | None, Refused | None]:
    """Return the policy, or why it is unreadable. Only containers with a request need it."""
    try:
        return policies.read(paths.policy, _NOUN), None
    except Refused as refusal:
        return None, refusal


def _forget(paths: Paths, container: str) -> None:
    """Record that `container` has no GPU, whatever an earlier container of that name had."""
    try:
        broker.do_without(Store(paths.store), Host(), container)
    except (OSError, ValueError):
        pass  # nothing about GPUs is a reason to stop a container without any


def _request(call: arguments.Call, bundle: str, cgroups_path: str) -> broker.Request:
    """Make the request of a container.

    Raises:
        Refused: its cgroup path does not identify it, so it would seem to be gone while it runs.
        OSError: the control groups of this process cannot be read.
    """
    if not Host().planned_cgroup(call.container, cgroups_path):
        raise Refused(
            "cgroup-unsupported",
            f"cgroup path {cgroups_path[:200]} is not supported for containers with a GPU. Remove "
            "--cgroup-parent, or let the engine choose the path",
        )
    request = broker.Request(call.container, bundle, cgroups_path)
    path = call.options.get("pid-file", "")
    request.kind, request.pid_file = CONTAINER, os.path.abspath(path) if path else ""
    return request


def _policy(paths: Paths) -> Policy:
    found = policies.read(paths.policy, _NOUN)
    if found is None:
        raise Refused(
            "gpus-disabled",
            "containers on this machine no longer get GPUs (enable-gpu=false). Ask the machine's "
            "operator",
        )
    return found


def _policies(paths: Paths, patience: int | None) -> Iterator[Policy]:
    """Yield the current policy, with its wait limited to the engine's patience if there is one."""
    while True:
        found = _policy(paths)
        if patience is not None:
            found.wait_timeout = min(found.wait_timeout, patience)
        yield found
