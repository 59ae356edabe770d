# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One call of the runtime `gpu-ci` by podman or Docker: decide, edit the bundle, become the next.

A container that asks for nothing goes to runc, without any GPU that the engine may have put into
it. One that asks gets a lease or is refused in words, on stderr as well, since a person waits. As
in the wrapper, the process is always replaced and never forks.
"""

from __future__ import annotations

import os
import sys

from gpu_runtime import container_spec as spec
from gpu_runtime import decision_log as journal
from gpu_runtime import engine_client as engine_caller
from gpu_runtime import engine_metadata as engine_facts
from gpu_runtime import engine_request as engine_wish
from gpu_runtime import engine_spec, rootfs
from gpu_runtime import lease_manager as broker
from gpu_runtime import policy as policies
from gpu_runtime import refusal as refuse
from gpu_runtime import runc_arguments as arguments
from gpu_runtime import task_call as wrapper
from gpu_runtime.decision_log import Decision
from gpu_runtime.device_nodes import Nodes
from gpu_runtime.fast_json import SPEC
from gpu_runtime.holder_usage import Host
from gpu_runtime.json_files import read_object, replace
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import CONTAINER, NOUNS
from gpu_runtime.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_runtime.engine_metadata import Facts
    from gpu_runtime.policy import Policy

_NOUN = NOUNS[CONTAINER]
# For how long a container may wait at most, in seconds, by its engine. podman holds its lock
# meanwhile, so that `podman ps` waits too, heeds no Ctrl-C, and gives up after 240 s (podman 3 to
# 5 libpod/define/config.go ContainerCreateTimeout); of others nothing is known. Docker waits on.
_PATIENCE = {engine_facts.PODMAN: 60, "": 60}


class Paths:
    """Where things are, as the front passes them.

    Attributes:
        runc: the runtime that makes containers.
        policy: policy.json.
        store: the folder of leases.
        home: the folder in which the front lies.
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
            environment = wrapper.nvidia_environment(paths.config_home, paths.home)
            wrapper.become(runtime, words, environment, _NOUN)
        wrapper.become(paths.runc, words, wrapper.own_environment(), _NOUN)
    except Refused as refusal:
        decision.reason = str(refusal)
        decision.granted = []
        decision.write(paths.log)
        refuse.write(log, decision.reason)
        sys.stderr.write(f"gpu-ci-worker: {decision.reason}\n")
        sys.exit(1)


def _serve(paths: Paths, call: arguments.Call, decision: Decision) -> str:
    """Edit what a call is about; the NVIDIA runtime if that is next, or empty."""
    if not call.container:
        return ""  # runc refuses it
    try:
        if call.command in {"create", "run", "restore"}:
            return _start(paths, call, decision)
        if call.command == "exec" and Store(paths.store).has(call.container):
            _exec(paths, call, decision)
    except (OSError, ValueError) as error:
        if call.command != "exec" and not decision.kind:
            raise Refused(f"this container cannot be looked at: {refuse.fault(error)}") from error
        raise Refused(f"{refuse.failed(_NOUN)}: {refuse.fault(error)}") from error
    return ""


def _start(paths: Paths, call: arguments.Call, decision: Decision) -> str:
    bundle = os.path.abspath(call.options.get("bundle", "."))
    path = f"{bundle}/config.json"
    try:
        config = read_object(path, SPEC)
    except FileNotFoundError:
        return ""  # runc says it best
    facts = engine_facts.read(config, bundle, call.container)
    policy, unreadable = _policy_for(paths)
    nodes = Nodes(policy)
    privileged = engine_spec.is_privileged(config)
    wish = engine_wish.read(config, facts, nodes, privileged=privileged)
    brought = engine_facts.cdi_paths() if wish else set[str]()
    bare = engine_spec.without_gpus(config, nodes, brought)
    if not wish:
        _forget(paths, call.container)
        if bare is not config:
            replace(path, bare, like=path)
        return ""
    decision.kind = " ".join(filter(None, (facts.engine, "container")))
    if unreadable:
        raise unreadable
    _check(policy, call, privileged=privileged)
    assert policy  # noqa: S101  _check refuses without one
    decision.asked, named = engine_wish.devices(wish, policy, nodes)
    if policy.vendor.by_runtime:
        rootfs.check_files(config, bundle, _NOUN)
    request = _request(call, bundle, spec.cgroups_path(config))
    request.who, request.named = facts.who(call.container), named
    variables = engine_wish.variables(config.get("process"), facts)
    request.unfit = wrapper.unfit(policy, variables, config, bundle)
    return _grant(
        paths, _Made(config=bare, path=path, nodes=nodes, facts=facts), request, decision
    )


class _Made:
    """A container that is to be made."""

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
    grant = broker.acquire(store, host, policies_now, request, decision, told=engine_caller.check)
    journal.intruders(paths.log, host.intruders, grant.ids)
    try:
        policy = next(policies_now)
        own = [
            one
            for device in policy.devices
            if device.id in grant.ids
            for one in made.nodes.of(device)
        ]
        variables = engine_wish.variables(made.config.get("process"), made.facts)
        changed = engine_spec.granted(
            made.config, grant, variables, made.nodes, own, os.uname().machine
        )
        replace(made.path, changed, like=made.path)
    except (OSError, ValueError, Refused):
        broker.undo(store, host, request)
        raise
    return policy.nvidia_runtime if policy.vendor.by_runtime else ""


def _exec(paths: Paths, call: arguments.Call, decision: Decision) -> None:
    """Tell a process what its container got."""
    path = call.options.get("process", "")
    store, host = Store(paths.store), Host()
    try:
        bundle = store.record(call.container).bundle
        decision.kind = "exec"
        record = broker.resume(store, host, lambda: _policy(paths), decision)
        if path:
            process = read_object(path, SPEC)
            facts = engine_facts.read(read_object(f"{bundle}/config.json"), bundle, call.container)
            variables = engine_wish.variables(process, facts)
            told = spec.told(process, variables, record.environment, record.gpus)
            replace(path, spec.in_groups(told, record.groups), like=path)
    except FileNotFoundError:
        decision.kind = ""  # swept meanwhile, or runc says it best


def _check(policy: Policy | None, call: arguments.Call, *, privileged: bool) -> None:
    """Check that this machine gives a container like this a GPU at all.

    Raises:
        Refused: it does not.
    """
    if os.geteuid() or _is_nested():
        raise Refused(
            "a container of a rootless engine gets no GPU on this machine, since its user can't "
            "take a lease: run it as root (sudo podman, or the machine's own Docker)"
        )
    if policy is None:
        raise Refused(
            "containers on this machine get no GPU (its operator set enable-gpu=false, or "
            "gpu-device-ids allows none)"
        )
    if call.command != "create":
        raise Refused(
            f"this container is to have a GPU and was started by `{call.command}`, which brings "
            "none in: start it by create and start, as podman and Docker do"
        )
    if privileged and not policy.privileged:
        raise Refused(
            "this container asks for a GPU and is privileged, so nothing could keep it to that "
            "one: leave --privileged away, or have the machine's operator set "
            "privileged-tasks=gpu"
        )
    runtime = policy.nvidia_runtime
    if policy.vendor.by_runtime and not os.access(runtime, os.X_OK):
        raise wrapper.no_runtime(runtime, _NOUN)


def _is_nested() -> bool:
    """Whether this runs in a user namespace of a user's own.

    An unprivileged LXD container is one too, but there all programs are in it.
    """
    with open("/proc/self/uid_map") as own, open("/proc/1/uid_map") as first:
        return own.read() != first.read()


def _policy_for(paths: Paths) -> tuple[Policy | None, Refused | None]:
    """The policy; or why it can't be read, which concerns only those that ask for a GPU."""
    try:
        return policies.read(paths.policy, _NOUN), None
    except Refused as refusal:
        return None, refusal


def _forget(paths: Paths, container: str) -> None:
    """Have it that `container` has no GPU, whatever an earlier one of that name had."""
    try:
        broker.do_without(Store(paths.store), Host(), container)
    except (OSError, ValueError):
        pass  # nothing about GPUs is a reason to stop a container without any


def _request(call: arguments.Call, bundle: str, cgroups_path: str) -> broker.Request:
    """What the leases are told of a container.

    Raises:
        Refused: it would be taken for gone while it runs.
        OSError: that can't be told.
    """
    if not Host().planned_cgroup(call.container, cgroups_path):
        raise Refused(
            f"this container's control group is to be {cgroups_path[:200]}, by which nobody could "
            "tell whether it uses its GPU: leave it to the engine what that is called"
        )
    request = broker.Request(call.container, bundle, cgroups_path)
    path = call.options.get("pid-file", "")
    request.kind, request.pid_file = CONTAINER, os.path.abspath(path) if path else ""
    return request


def _policy(paths: Paths) -> Policy:
    found = policies.read(paths.policy, _NOUN)
    if found is None:
        raise Refused("containers on this machine get no GPU any longer: its operator said so")
    return found


def _policies(paths: Paths, patience: int | None) -> Iterator[Policy]:
    """The policy whenever it is asked for, with the engine's patience regarded; None: any."""
    while True:
        found = _policy(paths)
        if patience is not None:
            found.wait_timeout = min(found.wait_timeout, patience)
        yield found
