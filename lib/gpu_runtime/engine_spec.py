# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Take the engine's GPUs out of a config.json, and put a grant into it. Pure."""

from __future__ import annotations

import os.path

from gpu_runtime import container_spec as spec
from gpu_runtime.device_nodes import DRM, NVIDIA
from gpu_runtime.engine_request import node_numbers
from gpu_runtime.json_shape import items, table, text
from gpu_runtime.refusal import Refused
from gpu_runtime.seccomp import of_a_holder, unconfined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_runtime.device_nodes import Nodes, Numbers
    from gpu_runtime.environment import Variables
    from gpu_runtime.grant import Grant

# Hooks that add GPUs: those of Docker (daemon/nvidia_linux.go; from 29.2 on
# where CDI fails, daemon/devices_nvidia_linux.go), by CDI files, and by podman's hooks.d.
_HOOKS = frozenset(
    {
        *("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-cdi-hook"),
        *("nvidia-ctk", "amd-ctk", "amd-cdi-hook"),
    }
)
_EVERY = 0xFFFFFFFF  # as the kernel itself writes every number (device_cgroup.c of v1)


def is_privileged(config: dict[str, object]) -> bool:
    """Whether a container may open every device, as `--privileged` has it.

    Such a rule names no type (Docker daemon/oci_linux.go, podman pkg/specgen/generate); a person's
    own rule for all types, by --device-cgroup-rule, names the type `a`.
    """
    rules = items(_resources(config).get("devices"))
    return any(rule.get("allow") is True and not rule.get("type") for rule in map(table, rules))


def without_gpus(
    config: dict[str, object], nodes: Nodes, brought: Collection[str] = ()
) -> dict[str, object]:
    """Return `config` without the parts that give a container a GPU.

    These are nodes, rules, mounts, hooks and annotations. Without any, it is `config` itself.

    Args:
        config: the engine's.
        nodes: the machine's.
        brought: all paths that CDI files of GPUs name.

    Raises:
        Refused: it may open all character devices, and is not privileged.
    """
    changed = dict(config)
    mounts = items(config.get("mounts"))
    kept = [mount for mount in mounts if not _brings(table(mount), nodes, brought)]
    if len(kept) < len(mounts):
        changed["mounts"] = kept
    if hooks := _without_hooks(table(config.get("hooks")), brought):
        changed["hooks"] = hooks
    linux = table(config.get("linux"))
    devices = items(linux.get("devices"))
    left = [node for node in devices if not _is_gpu(node_numbers(table(node)), nodes)]
    rules = items(_resources(config).get("devices"))
    allowed = _rules(rules, nodes, privileged=is_privileged(config))
    if len(left) < len(devices) or allowed != rules:
        resources = {**table(linux.get("resources")), "devices": allowed}
        changed["linux"] = {**linux, "resources": resources}
        if devices:
            table(changed["linux"])["devices"] = left
    annotations = table(config.get("annotations"))
    if any(name.startswith(spec.CDI_PREFIX) for name in annotations):
        changed["annotations"] = {
            name: value
            for name, value in annotations.items()
            if not name.startswith(spec.CDI_PREFIX)
        }
    return config if changed == config else changed


def granted(
    config: dict[str, object],
    grant: Grant,
    variables: Variables,
    nodes: Nodes,
    own: Collection[Numbers],
    machine: str = "",
) -> dict[str, object]:
    """Return `config`, which has no GPU, with `grant` in it.

    Args:
        config: the result of `without_gpus`.
        grant: the container's grant.
        variables: those of its process, each with its writer.
        nodes: the machine's.
        own: numbers of the granted devices' own nodes.
        machine: what uname(2) calls this machine.

    Raises:
        Refused: a variable names more than the grant.
    """
    linux = table(config.get("linux"))
    profile = table(linux.get("seccomp"))
    if not profile and not is_privileged(config):  # --security-opt seccomp=unconfined
        profile = unconfined(machine)
    if profile:
        linux = {**linux, "seccomp": of_a_holder(profile)}
    if is_privileged(config):
        # A deny rule beside an allow rule must not cover the same node, or all nodes of its major
        # number (runc libcontainer/cgroups/devices/devices_emulator.go). So granted nodes have no
        # deny rule, and each other node that exists now has one.
        resources = table(linux.get("resources"))
        common = (
            [(node.major, node.minor) for node in grant.nodes]
            if grant.nodes
            else [one for one, path in nodes.shared.items() if path.startswith("/dev/nvidia")]
        )
        refused = [*map(_refusal, sorted({*nodes.cards, *nodes.shared} - {*own, *common}))]
        ours = _refusals(nodes)
        rules = [rule for rule in items(resources.get("devices")) if rule not in ours] + refused
        linux = {**linux, "resources": {**resources, "devices": rules}}
    if grant.nodes:
        linux = spec.with_nodes(linux, grant.nodes)
    process = spec.with_variables(config.get("process"), variables, grant.environment, grant.ids)
    return {**config, "linux": linux, "process": spec.in_groups(process, grant.groups)}


def _brings(mount: dict[str, object], nodes: Nodes, brought: Collection[str]) -> bool:
    if spec.asks_for_device(mount):
        return True
    source = text(mount.get("source"))
    if source in brought and text(mount.get("destination")) in brought:
        return True
    paths = {*nodes.cards.values(), *nodes.shared.values()}
    return source.startswith("/dev/") and os.path.normpath(source) in paths


def _without_hooks(hooks: dict[str, object], brought: Collection[str]) -> dict[str, object]:
    """Return the hooks without those that add GPUs; empty if there is none of these."""
    kept: dict[str, object] = {
        when: [
            hook
            for hook in items(those)
            if (path := text(table(hook).get("path"))) not in brought
            and os.path.basename(path) not in _HOOKS
        ]
        for when, those in hooks.items()
    }
    return kept if kept != hooks else {}


def _rules(rules: list[object], nodes: Nodes, *, privileged: bool) -> list[object]:
    """Return the device rules without those that allow a GPU."""
    kept: list[object] = []
    for rule in rules:
        found = table(rule)
        kind, major, minor = (found.get(name) for name in ("type", "major", "minor"))
        # One for every type is for every device, whatever numbers and kinds of access are in it:
        # to runc (1.0 to 1.5 devices_emulator.go) as to the kernel.
        reads = kind == "a" or {*text(found.get("access"))} & {"r", "w"}
        if found.get("allow") is True and kind in ("a", "c", "u") and reads:
            every = kind == "a" or _is_any(major)
            if every and not privileged:
                raise Refused(
                    "device-rule-too-wide",
                    "this container may open every character device, and so every GPU. Limit "
                    "--device-cgroup-rule to the devices that it needs",
                )
            several = every or (_is_any(minor) and nodes.covered(major))
            if several or _is_gpu(node_numbers(found), nodes):
                continue
        kept.append(rule)
    if privileged:
        kept += [rule for rule in _refusals(nodes) if rule not in kept]
    return kept


def _refusals(nodes: Nodes) -> list[object]:
    """Rules against every GPU, also those whose nodes come later."""
    there = [*nodes.cards, *nodes.shared]
    majors = {NVIDIA, *(major for major, _ in there)}
    if nodes.beside:
        majors.discard(DRM)
    each = [one for one in there if one[0] not in majors]
    return [*map(_refusal, sorted([*((major, -1) for major in majors), *each]))]


def _refusal(numbers: Numbers) -> dict[str, object]:
    major, minor = numbers
    return {"allow": False, "type": "c", "major": major, "minor": minor, "access": "rw"}


def _is_any(number: object) -> bool:
    """Whether a rule's number stands for all: to runc each below zero does."""
    return number is None or (isinstance(number, int) and (number < 0 or number == _EVERY))


def _is_gpu(numbers: Numbers | None, nodes: Nodes) -> bool:
    return numbers is not None and nodes.has(numbers)


def _resources(config: dict[str, object]) -> dict[str, object]:
    return table(table(config.get("linux")).get("resources"))
