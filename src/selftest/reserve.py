# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A GPU that the self-test has alone, also where tasks share them: a lease like any other.

It lives as long as this process, so that one that is killed leaves nothing that lasts: whoever
wants the GPU next finds the process gone, ends what its container left, and takes it.
"""

import collections.abc
import contextlib

from gpuci import leases, policy
from gpuci.leases import Holder
from gpuci.policy import Device, Policy
from gpuci.refuse import Refused
from gpuci.store import Store
from gpuci.usage import Host
from oci import cordons, wrapper
from oci.leases import words


@contextlib.contextmanager
def alone(
    container: str, gpus: collections.abc.Iterable[str]
) -> collections.abc.Generator[str, None, None]:
    """Have GPUs for the self-test alone; yield why that can't be, empty if it can.

    It does not wait: neither for who has one of them, nor before those who wait for it. A GPU that
    is quarantined can be had; one that somebody outside CI uses can't.

    Args:
        container: the id of the container that is to get them, by the wrapper and whatever it asks
            for; or of none that comes to be, where they are used without one.
        gpus: ids of GPUs, which stand for all their MIG devices, or of single MIG devices.
    """
    store, host = Store(str(wrapper.STORE)), Host()
    try:
        allowed = policy.read(str(wrapper.POLICY))
        why = take(store, host, allowed, container, [*gpus])
    except (OSError, Refused) as error:
        why = str(error)
    try:
        yield why
    finally:
        if not why:
            # Where that fails, the lease ends with this process.
            with contextlib.suppress(OSError, Refused):
                give_back(store, host, container)


def take(store: Store, host: Host, allowed: Policy | None, container: str, gpus: list[str]) -> str:
    """Have these GPUs leased to `container` alone; return why not, empty if they are.

    Raises:
        OSError: the store or a cordon can't be read or written.
        Refused: the store is damaged.
    """
    listed = allowed.devices if allowed else []
    devices = [device for device in listed if device.id in gpus or device.gpu in gpus]
    missing = {*gpus} - {name for device in devices for name in (device.id, device.gpu)}
    if allowed is None or not devices or missing:
        return f"{' and '.join(sorted(missing)) or 'nothing'} is no GPU that tasks get here"
    foreign = cordons.reasons()
    for device in devices:
        if reason := foreign.get(device.gpu) or foreign.get(device.id):
            return f"{_name(device)} is {reason}"
    cordoned = allowed.cordoned()
    usable = [device.id for device in allowed.devices if device.id not in cordoned]
    with store as table:
        earlier = table.holders.get(container)
        if earlier and not leases.release_unused(table, container, host):
            return f"{words(container, earlier, host)} has not ended"
        for device in devices:
            other = leases.take_these(table, container, [device.id], host, alone=True)
            if other:
                return f"{_name(device)} is in use by {words(other, table.holders[other], host)}"
        ids = [device.id for device in devices]
        wanted = [name for name in ids if name in usable]
        exclusive = allowed.exclusive
        if wanted and leases.are_due(table, container, wanted, usable, host, alone=exclusive):
            return f"a task waits for {_name(devices[0])}"
        table.holders[container] = Holder("", ids, [host.me()], alone=True, since=host.now())
    return ""


def give_back(store: Store, host: Host, container: str) -> None:
    """End the lease of `container`, unless something runs in it still: then it ends with that.

    What its processes are told stays in the store until its bundle is gone: as long as it is there
    a process could come to it, which has to ask for the devices again.

    Raises:
        OSError: the store can't be used.
        Refused: it is damaged.
    """
    with store as table:
        holder = table.holders.get(container)
        if holder:
            holder.calls = [call for call in holder.calls if call != host.me()]
            leases.release_unused(table, container, host)


def _name(device: Device) -> str:
    return f"GPU {device.index}" + ("" if device.id == device.gpu else f" ({device.id})")
