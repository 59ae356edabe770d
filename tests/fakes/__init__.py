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
    "STANDIN_RUNTIME",
    "Card",
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
PROGRAM = ("fakegpu", "fakecards.py", "fakekmsg.py")
LIBRARIES = {"libnvidia-ml.so.1": "nvml.c", "libcuda.so.1": "cuda.c"}


def build_nvml(directory: Path) -> Path:
    """Compiles libnvidia-ml.so.1 and libcuda.so.1 into `directory`; needs gcc, about 0.3 s."""
    directory.mkdir(parents=True, exist_ok=True)
    for library, source in LIBRARIES.items():
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            ["gcc", *flags, f"-Wl,-soname,{library}", "-o", directory / library, source],
            cwd=HERE / "nvml",
            check=True,
            timeout=120,
        )
    return directory


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
