# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Receive NVML's events: Xids, memory errors, and recoveries that the driver requests."""

import collections.abc
import ctypes
import dataclasses
import typing

from gpu_agent.gpu.vendors.nvidia.nvml_device import Device

# The name of a fault in gpu_agent.fault_policy.fault_table for each type of event, by nvml.h of
# CUDA 13.
_XID: typing.Final = 0x8
_RECOVERY: typing.Final = 0x8000
_FAULTS: typing.Final = {
    0x2: ("ecc", "double bit ECC error"),
    0x800: ("remap-failed", "memory could not be retired"),
    0x2000: ("poison", "fatal poison error"),
    0x4000: ("lost", "GPU unavailable"),
    _RECOVERY: ("recovery", "recovery action"),
}
# NVML's value for an event without a MIG device.
_WHOLE: typing.Final = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Told:
    """One event.

    Attributes:
        uuid: the GPU's; for a MIG device its GPU's.
        fault: the name of a row in gpu_agent.fault_policy.fault_table; empty: `xid` decides.
        xid: its number; None if it is not an Xid.
        text: a few words.
    """

    uuid: str
    fault: str
    xid: int | None
    text: str


class Events:
    """An event set of these GPUs, each with the types that it supports; others are left out.

    Attributes:
        watched: UUIDs of the GPUs that can have events.

    Raises:
        NVMLError: NVML has no event sets here.
    """

    def __init__(self, binding: typing.Any, devices: collections.abc.Mapping[str, Device]) -> None:
        self._binding, self.watched = binding, set[str]()
        self._devices = {_address(device): (uuid, device) for uuid, device in devices.items()}
        self._set = binding.nvmlEventSetCreate()
        wanted = _XID
        for kind in _FAULTS:
            wanted |= kind
        for uuid, device in devices.items():
            try:
                types = wanted & binding.nvmlDeviceGetSupportedEventTypes(device.handle)
                if types:
                    binding.nvmlDeviceRegisterEvents(device.handle, types, self._set)
                    self.watched.add(uuid)
            except binding.NVMLError:  # a sample shows what is wrong with it
                continue

    def wait(self, milliseconds: int) -> Told | None:
        """Return the next event; None if there was none in time, or none of interest.

        Raises:
            NVMLError: waiting for events failed, for example because a GPU is lost.
        """
        try:
            found = self._binding.nvmlEventSetWait_v2(self._set, milliseconds)
        except self._binding.NVMLError_Timeout:
            return None
        return self._told(found)

    def close(self) -> None:
        """Free the set."""
        self._binding.nvmlEventSetFree(self._set)

    def _told(self, found: typing.Any) -> Told | None:
        address = ctypes.cast(found.device, ctypes.c_void_p).value
        uuid, device = self._devices.get(address or 0, ("", None))
        if device is None:
            return None
        if found.eventType == _XID:
            text = ""
            if found.gpuInstanceId != _WHOLE:
                text = f"GPU instance {found.gpuInstanceId}, compute {found.computeInstanceId}"
            return Told(uuid, "", int(found.eventData), text)
        if found.eventType not in _FAULTS:
            return None
        fault, text = _FAULTS[found.eventType]
        if found.eventType == _RECOVERY:
            # The event does not contain the action, nor whether it is over.
            action = device.recovery_action()
            if action == 0:
                return None
            text = text if action is None else f"{text} {action}"
        return Told(uuid, fault, None, text)


def _address(device: Device) -> int:
    return ctypes.cast(device.handle, ctypes.c_void_p).value or 0
