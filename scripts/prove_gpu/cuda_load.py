# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Load the first visible GPU through the driver's libcuda alone: `cuda_load.py MIB SECONDS`.

It allocates MIB, measures copies, then multiplies and copies for SECONDS. It writes a line of JSON
when it is ready, after each second, and at its end. Rates are in GB/s (10^9 bytes). Within the
GPU, read and written bytes both count. Without CUDA it writes why and ends with exit status 3.
"""

import collections.abc
import ctypes
import json
import sys
import time

# The most bytes of one copy within the GPU, and of one from or to the host.
_WITHIN, _HOST = 1 << 30, 256 << 20
# Blocks and threads of the kernel, and its rounds: some milliseconds on an H100.
_BLOCKS, _THREADS, _ROUNDS = 1024, 256, 1_000_000
# Each thread adds and multiplies; the driver compiles it. A driver may refuse the oldest target.
_KERNEL = """\
.version 6.3
.target {target}
.address_size 64
.visible .entry work(.param .u64 place, .param .u32 rounds)
{{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<4>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [place];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, 0f3F7FFFFF;
    mov.u32 %r3, 0;
again:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra again;
    cvta.to.global.u64 %d2, %d1;
    mul.wide.u32 %d3, %r2, 4;
    add.s64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f1;
    ret;
}}
"""
_TARGETS = ("sm_50", "sm_75")


class CudaError(Exception):
    """A call of the driver's failed."""


class Cuda:
    """libcuda.so.1, by the names and numbers of cuda.h (versions that CUDA 11 to 13 export)."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(str(error)) from error
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        # The primary context, as PyTorch uses it.
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; raise CudaError if it does not return CUDA_SUCCESS."""
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaError(f"{name} is missing in libcuda.so.1") from error
        code = function(*arguments)
        if code:
            raise CudaError(f"{name} returns {code}")

    def memory(self, size: int) -> ctypes.c_uint64:
        """Allocate memory of the GPU, set to ones."""
        place = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        words = ctypes.c_size_t(size // 4)
        self.call("cuMemsetD32_v2", place, ctypes.c_uint(0x01010101), words)
        self.wait()
        return place

    def wait(self) -> None:
        """Wait until all is done."""
        self.call("cuCtxSynchronize")

    def rates(self, place: ctypes.c_uint64, size: int) -> dict[str, float]:
        """Return the rates of copies within the GPU, and from and to pinned memory of the host."""
        within, between = min(_WITHIN, size // 2), min(_HOST, size // 2)
        host, part = ctypes.c_void_p(), ctypes.c_size_t(between)
        self.call("cuMemAllocHost_v2", ctypes.byref(host), part)
        found = {
            "within_gbps": 2 * within / self.best(lambda: self.copy(place, within, size)) / 1e9,
            "to_device_gbps": between
            / self.best(lambda: self.call("cuMemcpyHtoDAsync_v2", place, host, part, None))
            / 1e9,
            "to_host_gbps": between
            / self.best(lambda: self.call("cuMemcpyDtoHAsync_v2", host, place, part, None))
            / 1e9,
        }
        self.call("cuMemFreeHost", host)
        return found

    def best(self, copy: collections.abc.Callable[[], None]) -> float:
        """Return the seconds of one copy: the best of five times four."""
        best = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(4):
                copy()
            self.wait()
            best = min(best, (time.perf_counter() - began) / 4)
        return best

    def copy(self, place: ctypes.c_uint64, part: int, size: int) -> None:
        """Copy so many bytes from the first half of the memory to the second one."""
        other, bytes_ = ctypes.c_uint64(place.value + size // 2), ctypes.c_size_t(part)
        self.call("cuMemcpyDtoDAsync_v2", other, place, bytes_, None)

    def kernel(self) -> ctypes.c_void_p:
        """Return the kernel."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        for target in _TARGETS:
            text = _KERNEL.format(target=target).encode()
            try:
                self.call("cuModuleLoadData", ctypes.byref(module), text)
                break
            except CudaError:
                if target == _TARGETS[-1]:
                    raise
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"work")
        return function

    def launch(self, function: ctypes.c_void_p, place: ctypes.c_uint64) -> None:
        """Queue the kernel."""
        rounds = ctypes.c_uint(_ROUNDS)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(place), ctypes.addressof(rounds))
        grid, block = (_BLOCKS, 1, 1), (_THREADS, 1, 1)
        self.call("cuLaunchKernel", function, *grid, *block, 0, None, parameters, None)


def main(mib: int, seconds: float) -> None:
    """Do the work."""
    cuda = Cuda()
    size = mib << 20
    place = cuda.memory(size)
    function, part = cuda.kernel(), min(_WITHIN, size // 2)
    say({"ready": 1, "mib": mib, **cuda.rates(place, size)})
    began = told = time.monotonic()
    rounds = 0
    while (now := time.monotonic()) - began < seconds:
        for _ in range(4):
            cuda.launch(function, place)
            cuda.copy(place, part, size)
        cuda.wait()
        rounds += 1
        if now - told >= 1:
            told = now
            say({"rounds": rounds})
    say({"ended": 1, "rounds": rounds})


def say(line: dict) -> None:
    """Write one object."""
    print(json.dumps(line), flush=True)


try:
    main(int(sys.argv[1]), float(sys.argv[2]))
except CudaError as error:
    say({"error": str(error)})
    sys.exit(3)
