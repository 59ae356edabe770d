# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Read one AMD or Intel GPU's figures from its driver's files in /sys.

Files of amdgpu: Linux Documentation/gpu/amdgpu/driver-misc.rst, thermal.rst and ras.rst; hwmon's:
Documentation/hwmon/sysfs-interface.rst and Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon.
"""

import collections.abc
import pathlib
import re
import typing

from gpu_agent.gpu.kernel import sysfs as kernel
from gpu_agent.model.card import Figures

_MIB: typing.Final = 1 << 20


def read(root: pathlib.Path, address: str) -> Figures | None:
    """The figures that the driver has; None if no driver has the GPU.

    Args:
        root: the folder with /sys.
        address: the GPU's PCI address.

    Raises:
        OSError: the machine lacks resources, so the figures are unknown.
    """
    device = root / "sys/bus/pci/devices" / address
    if not (device / "driver").exists():
        return None
    sensors = sorted((device / "hwmon").glob("hwmon*")) if (device / "hwmon").is_dir() else []
    corrected, uncorrected = _ras(device / "ras")
    return Figures(
        busy=_number(device / "gpu_busy_percent"),
        memory_used_mib=_scaled(device / "mem_info_vram_used", _MIB),
        memory_total_mib=_scaled(device / "mem_info_vram_total", _MIB),
        power_w=_watts(sensors, "power1_average", "power1_input"),
        power_limit_w=_watts(sensors, "power1_cap", "power1_max"),
        energy_j=_first(sensors, 1e6, "energy1_input"),
        temperature=_celsius(sensors),
        sm_clock_mhz=_mhz(sensors),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
    )


def _number(path: pathlib.Path) -> int | None:
    said = kernel.text(path)
    return int(said) if said.isdecimal() else None


def _scaled(path: pathlib.Path, by: int) -> int | None:
    found = _number(path)
    return None if found is None else found // by


def _first(
    sensors: collections.abc.Iterable[pathlib.Path], by: float, *names: str
) -> float | None:
    for sensor in sensors:
        for name in names:
            found = _number(sensor / name)
            if found is not None:
                return found / by
    return None


def _watts(sensors: collections.abc.Iterable[pathlib.Path], *names: str) -> float | None:
    return _first(sensors, 1e6, *names)  # in µW


def _celsius(sensors: collections.abc.Iterable[pathlib.Path]) -> int | None:
    # In thousandths. Intel's first one is xe's second.
    found = _first(sensors, 1000, "temp1_input", "temp2_input")
    return None if found is None else int(found)


def _mhz(sensors: collections.abc.Iterable[pathlib.Path]) -> int | None:
    found = _first(sensors, 1e6, "freq1_input")  # in Hz
    return None if found is None else int(found)


def _ras(folder: pathlib.Path) -> tuple[int | None, int | None]:
    """Return corrected and uncorrected errors of all blocks, from `ue: 0`, `ce: 0`.

    None if the GPU has no RAS.
    """
    said = "\n".join(kernel.text(path) for path in sorted(folder.glob("*_err_count")))
    sums = [
        [int(count) for count in re.findall(rf"^{kind}: ([0-9]+)$", said, re.M)]
        for kind in ("ce", "ue")
    ]
    corrected, uncorrected = (sum(counts) if counts else None for counts in sums)
    return corrected, uncorrected
