# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One GPU's answers through NVML, with None where the GPU or its driver does not tell."""

import typing

from gpu_agent.gpu.vendors.nvidia import nvml

# nvml.h, NVML_ERROR_MEMORY and NVML_ERROR_INSUFFICIENT_RESOURCES
_WANT: typing.Final = (20, 23)


def is_for_want(error: BaseException | None) -> bool:
    """Whether an error of NVML's only says that the machine is out of something."""
    return getattr(error, "value", None) in _WANT


class Device:
    """One GPU that answers, and what it failed to answer.

    Args:
        binding: pynvml, in a session.
        uuid: whose.
        handle: NVML's of it, where there is one already.

    Attributes:
        trouble: NVML's words on the first query that ended in an error; or empty.
        starved: whether one ended so for want of memory or the like: that is no word on the GPU.

    Raises:
        NVMLError: it does not answer. So does each query, where it is lost or needs a reset.
    """

    def __init__(self, binding: typing.Any, uuid: str, handle: typing.Any = None) -> None:
        self.binding = binding
        self.handle: typing.Any = handle or binding.nvmlDeviceGetHandleByUUID(uuid)
        self.trouble, self.starved = "", False

    def ask(self, query: str, *arguments: object) -> typing.Any:
        """What nvmlDeviceGet<query> answers; None if it does not."""
        binding = self.binding
        function = getattr(binding, f"nvmlDeviceGet{query}")
        try:
            return nvml.if_supported(binding, function, self.handle, *arguments)
        except binding.NVMLError as error:
            if error.value in (binding.NVML_ERROR_GPU_IS_LOST, binding.NVML_ERROR_RESET_REQUIRED):
                raise
            # The driver is older than the query, or a container may not ask it.
            untold = (
                binding.NVML_ERROR_INVALID_ARGUMENT,
                binding.NVML_ERROR_NO_PERMISSION,
                binding.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                binding.NVML_ERROR_DEPRECATED,
            )
            self.starved = self.starved or is_for_want(error)
            if error.value not in untold:
                self.trouble = self.trouble or f"nvmlDeviceGet{query}: {error}"
            return None

    def watts(self, query: str) -> float | None:
        """What answers in mW, in W."""
        milliwatts = self.ask(query)
        return None if milliwatts is None else milliwatts / 1000

    def flag(self, query: str) -> bool | None:
        """What answers with a number or a list, as whether there is any."""
        answer = self.ask(query)
        return None if answer is None else bool(answer)

    def ecc_errors(self, kind: str, counter: str) -> int | None:
        """Errors in memory: `CORRECTED` or `UNCORRECTED`, `VOLATILE` or `AGGREGATE`."""
        return self.ask(
            "TotalEccErrors",
            getattr(self.binding, f"NVML_MEMORY_ERROR_TYPE_{kind}"),
            getattr(self.binding, f"NVML_{counter}_ECC"),
        )

    def reasons(self) -> int | None:
        """For a lower clock, as bits."""
        # Drivers before 535 know it by its old name only.
        answer = self.ask("CurrentClocksEventReasons")
        return self.ask("CurrentClocksThrottleReasons") if answer is None else answer

    def recovery_action(self) -> int | None:
        """What the driver asks for, by the numbers of recovery_action.py."""
        field = self.binding.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        answer = self.ask("FieldValues", [field])
        if answer is None or answer[0].nvmlReturn != self.binding.NVML_SUCCESS:
            return None
        return answer[0].value.uiVal

    def temperature(self) -> int | None:
        """In °C."""
        # NVML of CUDA 14 will have the second one only.
        sensor = self.binding.NVML_TEMPERATURE_GPU
        answer = self.ask("Temperature", sensor)
        return self.ask("TemperatureV", sensor) if answer is None else answer
