# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Simulated GPUs, for machines of the lab and for tests without root.

In a machine: copy `gpu_files(build_nvml(...))` there, run `FAKEGPU install`; see its --help.
In a test: `write_state` and `build_nvml`, then FAKE_GPU_DIR and LD_LIBRARY_PATH for whatever loads
NVML; `make_tree` for whatever reads /sys and /proc below a root of the test's own, and `make_dev`
for /dev.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.fakecards import (
    DRIVER_VERSION,
    MODULES,
    Card,
    dri_links,
    dri_nodes,
    maker_card,
    render,
    sync,
    write_links,
    write_state,
)

__all__ = [
    "DRIVER_VERSION",
    "FAKEGPU",
    "MODULES",
    "STANDIN_RUNTIME",
    "Card",
    "build_module",
    "build_nvml",
    "gpu_files",
    "make_dev",
    "make_tree",
    "maker_card",
    "write_state",
]

HERE = Path(__file__).parent
FAKEGPU = "/usr/local/lib/fake-gpu/fakegpu"
STANDIN_RUNTIME = HERE / "nvidia-container-runtime-standin"
PROGRAM = (
    *("fakegpu", "fakecards.py", "fakefaults.py", "fakekmsg.py", "fakemodules.py", "fakenodes.py"),
)
LIBRARIES = {"libnvidia-ml.so.1": "nvml.c", "libcuda.so.1": "cuda.c"}


def build_nvml(directory: Path, version: str = "") -> Path:
    """Compiles libnvidia-ml.so.1 and libcuda.so.1 into `directory`; needs gcc, about 0.3 s.

    With a version the library is that driver's, and finds that it does not fit another's module.
    """
    directory.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", "-O2"]
    if version:
        flags.append(f'-DLIBRARY_VERSION="{version}"')
    for library, source in LIBRARIES.items():
        _compile(*flags, f"-Wl,-soname,{library}", "-o", str(directory / library), source)
    return directory


def build_module(path: Path, version: str) -> Path:
    """Compiles what depmod and modinfo take for NVIDIA's kernel module of that name."""
    name = path.stem.replace("-", "_")
    _compile("-c", f'-DNAME="{name}"', f'-DVERSION="{version}"', "-o", str(path), "module.c")
    return path


def _compile(*arguments: str) -> None:
    command = ["gcc", "-Wall", "-Wextra", "-Werror", *arguments]
    subprocess.run(command, cwd=HERE / "nvml", check=True, timeout=120)


def gpu_files(libraries: Path) -> dict[Path, str]:
    """What a machine needs, to be copied with its mode: file here -> path there."""
    directory = Path(FAKEGPU).parent
    files = {HERE / name: str(directory / name) for name in PROGRAM}
    return files | {libraries / name: str(directory / name) for name in LIBRARIES}


def make_tree(root: Path, cards: Sequence[Card], driver: str | None = DRIVER_VERSION) -> None:
    """Makes /sys and /proc below `root` as they look with these cards; again, to change them.

    `driver` is the version of nvidia.ko, None where it is not loaded.
    """
    sync(root, render(cards, driver))


def make_dev(root: Path, cards: Sequence[Card]) -> None:
    """Makes /dev below `root` with AMD's and Intel's nodes, as empty files, and udev's links."""
    for name in dri_nodes(cards):
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    write_links(root / "dev", dri_links(cards))
