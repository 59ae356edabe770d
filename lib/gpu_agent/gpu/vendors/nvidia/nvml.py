# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Query NVML for NVIDIA's GPUs. NVML's binding is untyped; its use ends in this file."""

import _ctypes
import collections.abc
import contextlib
import dataclasses
import pathlib
import re
import typing

from gpu_agent.gpu.vendors.nvidia.maker import MAKER
from gpu_agent.gpu.vendors.vendor import QueryError, Use
from gpu_agent.model.inventory import Gpu, MigDevice, State

# libnvidia-container's names of NVML's brands (src/driver.c), in lower case, by their number in
# nvml.h (nvmlBrandType_t).
_BRANDS: typing.Final = (
    *("unknown", "quadro", "tesla", "nvs", "grid", "geforce", "titan", "vapps", "vpc", "vcs"),
    *("vws", "cloudgaming", "quadrortx", "nvidiartx", "nvidia", "geforcertx", "titanrtx"),
)
_MAPS: typing.Final = pathlib.Path("/proc/self/maps")


class NvmlError(QueryError):
    """NVML can't be used at all; the text is its message.

    Attributes:
        state: what that means for this machine.
    """

    def __init__(self, state: State, words: str) -> None:
        super().__init__(words)
        self.state = state


@dataclasses.dataclass(frozen=True)
class Answer:
    """NVML's data on this machine.

    Attributes:
        driver: version of the loaded kernel driver.
        cuda: highest CUDA version that it supports, such as `13.0`; empty if unknown.
        gpus: the GPUs that answered, in NVML's order.
        failures: NVML's message for each other GPU, such as `GPU 1: GPU is lost`.
    """

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    failures: tuple[str, ...]


def read() -> Answer:
    """Query this machine's libnvidia-ml.so.1. A GPU that fails does not affect the others.

    Raises:
        NvmlError: it can't be loaded or started, or fails on the machine as a whole.
    """
    with session() as nvml:
        driver = nvml.nvmlSystemGetDriverVersion()
        cuda = if_supported(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        gpus: list[Gpu] = []
        failures: list[str] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, index))
            except nvml.NVMLError as error:
                failures.append(f"GPU {index}: {error}")
    # NVML's number for 13.0 is 13000 (nvml.h, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR).
    version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    return Answer(driver, version, tuple(gpus), tuple(failures))


def uses(uuids: collections.abc.Iterable[str]) -> dict[str, Use]:
    """Return the users of these GPUs, by UUID; without GPUs that do not answer.

    Raises:
        NvmlError: NVML can't be loaded or started.
    """
    found: dict[str, Use] = {}
    with session() as nvml:
        for uuid in uuids:
            with contextlib.suppress(nvml.NVMLError):
                found[uuid] = _use(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    return found


def library_version() -> str:
    """Return the version of the libnvidia-ml.so.1 that `read` loaded, by its file's name.

    NVML itself does not report it if it does not fit the kernel's driver.
    """
    match = re.search(r"/libnvidia-ml\.so\.([0-9]+(?:\.[0-9]+)+)$", _MAPS.read_text(), re.M)
    return match.group(1) if match else ""


@contextlib.contextmanager
def session() -> collections.abc.Generator[typing.Any]:
    """Provide the binding while NVML runs; all its errors become NvmlError."""
    # Only here: a machine that uses no GPUs never loads it.
    import pynvml  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    nvml: typing.Any = pynvml
    states = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: State.NO_LIBRARY,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: State.MISMATCH,
    }
    _unload(nvml)
    try:
        nvml.nvmlInit()
        try:
            yield nvml
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        state = states.get(error.value, State.NVML_ERROR)
        raise NvmlError(state, str(error)) from error


def _unload(nvml: typing.Any) -> None:
    """Unload the library of an earlier session, since the driver may have been changed.

    The binding would keep the library and its functions for the lifetime of this process.
    """
    binding = typing.cast(dict[str, typing.Any], vars(nvml))
    if binding["nvmlLib"] is not None and not binding["_nvmlLib_refcount"]:
        _ctypes.dlclose(binding["nvmlLib"]._handle)  # noqa: SLF001 documented by ctypes
        binding["nvmlLib"] = None
        binding["_nvmlGetFunctionPointer_cache"].clear()


def _gpu(nvml: typing.Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = if_supported(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    mig_enabled = bool((if_supported(nvml, nvml.nvmlDeviceGetMigMode, handle) or (0,))[0])
    arch = if_supported(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle) or ()
    brand: int | None = if_supported(nvml, nvml.nvmlDeviceGetBrand, handle)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        vendor=MAKER.name,
        model=nvml.nvmlDeviceGetName(handle),
        memory_mib=memory.total >> 20 if memory else 0,
        pci_address=pci_address(nvml.nvmlDeviceGetPciInfo(handle).busId),
        minor=nvml.nvmlDeviceGetMinorNumber(handle),
        mig_enabled=mig_enabled,
        mig=tuple(_mig_devices(nvml, handle)) if mig_enabled else (),
        arch=".".join(map(str, arch)),
        brand=dict(enumerate(_BRANDS)).get(-1 if brand is None else brand, ""),
    )


def _use(nvml: typing.Any, handle: object) -> Use:
    computing, drawing = (
        tuple(process.pid for process in if_supported(nvml, function, handle) or ())
        for function in (
            # Without a number the binding picks one and fails if the driver lacks it.
            nvml.nvmlDeviceGetComputeRunningProcesses_v3,
            nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        )
    )
    # The first version of this query counts the driver's reserve as used. On a GPU that is a NUMA
    # node (GH200), the kernel keeps files in its memory.
    memory = if_supported(nvml, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if not memory or if_supported(nvml, nvml.nvmlDeviceGetNumaNodeId, handle) is not None:
        return Use(computing, drawing)
    return Use(computing, drawing, memory.total >> 20, memory.used >> 20)


def _mig_devices(nvml: typing.Any, handle: object) -> collections.abc.Iterator[MigDevice]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        # The name ends in `MIG 1g.10gb`.
        profile = nvml.nvmlDeviceGetName(device).rpartition("MIG ")[2]
        yield MigDevice(nvml.nvmlDeviceGetUUID(device), profile)


def if_supported(
    nvml: typing.Any, function: collections.abc.Callable[..., typing.Any], *arguments: object
) -> typing.Any:
    """Return a query's answer; None if this GPU or this driver does not support it."""
    try:
        return function(*arguments)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


def pci_address(bus_id: str) -> str:
    """Return a PCI address as /sys writes it: a domain of four digits, in lower case.

    NVML writes a domain of eight digits, in upper case.
    """
    domain, rest = bus_id.split(":", 1)
    return f"{int(domain, 16):04x}:{rest.lower()}"
