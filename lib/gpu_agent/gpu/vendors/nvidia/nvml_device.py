# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Query one GPU through NVML, with None for what the GPU or its driver does not report."""

import typing

from gpu_agent.gpu.vendors.nvidia import nvml

# nvml.h, NVML_ERROR_MEMORY and NVML_ERROR_INSUFFICIENT_RESOURCES
_WANT: typing.Final = (20, 23)


def is_for_want(error: BaseException | None) -> bool:
    """Return whether an error of NVML only says that the machine is out of some resource."""
    return getattr(error, "value", None) in _WANT


class Device:
    """A GPU that answers, and the queries that failed.

    Args:
        binding: pynvml, in a session.
        uuid: the GPU's.
        handle: NVML's handle of it, if there is one already.

    Attributes:
        trouble: NVML's error of the first query that failed; or empty.
        starved: whether a query failed for lack of memory or the like, which is not a GPU's fault.

    Raises:
        NVMLError: it does not answer. So does each query if it is lost or needs a reset.
    """

    def __init__(self, binding: typing.Any, uuid: str, handle: typing.Any = None) -> None:
        self.binding = binding
        self.handle: typing.Any = handle or binding.nvmlDeviceGetHandleByUUID(uuid)
        self.trouble, self.starved = "", False

    def ask(self, query: str, *arguments: object) -> typing.Any:
        """Return what nvmlDeviceGet<query> answers; None if it does not."""
        binding = self.binding
        function = getattr(binding, f"nvmlDeviceGet{query}")
        try:
            return nvml.if_supported(binding, function, self.handle, *arguments)
        except binding.NVMLError as error:
            if error.value in (binding.NVML_ERROR_GPU_IS_LOST, binding.NVML_ERROR_RESET_REQUIRED):
                raise
            # The driver is older than the query, or a container may not use it.
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
        """Return an answer in mW as W."""
        milliwatts = self.ask(query)
        return None if milliwatts is None else milliwatts / 1000

    def flag(self, query: str) -> bool | None:
        """Return whether an answer, a number or a list, is not empty or 0."""
        answer = self.ask(query)
        return None if answer is None else bool(answer)

    def ecc_errors(self, kind: str, counter: str) -> int | None:
        """Return memory errors: `CORRECTED` or `UNCORRECTED`, `VOLATILE` or `AGGREGATE`."""
        return self.ask(
            "TotalEccErrors",
            getattr(self.binding, f"NVML_MEMORY_ERROR_TYPE_{kind}"),
            getattr(self.binding, f"NVML_{counter}_ECC"),
        )

    def reasons(self) -> int | None:
        """The reasons for a lower clock, as bits."""
        # Drivers before 535 have only its old name.
        answer = self.ask("CurrentClocksEventReasons")
        return self.ask("CurrentClocksThrottleReasons") if answer is None else answer

    def recovery_action(self) -> int | None:
        """The action that the driver requests, by the numbers of recovery_action.py."""
        field = self.binding.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        answer = self.ask("FieldValues", [field])
        if answer is None or answer[0].nvmlReturn != self.binding.NVML_SUCCESS:
            return None
        return answer[0].value.uiVal

    def temperature(self) -> int | None:
        """The temperature in °C."""
        # NVML of CUDA 14 will have only the second one.
        sensor = self.binding.NVML_TEMPERATURE_GPU
        answer = self.ask("Temperature", sensor)
        return self.ask("TemperatureV", sensor) if answer is None else answer
