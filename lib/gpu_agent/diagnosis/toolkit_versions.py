# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA's container toolkit by version: the default, and faults and CVEs of each. Pure.

docs/reference/toolkit-versions.md shows these tables.
"""

import dataclasses
import typing

from gpu_agent.model import versions


@dataclasses.dataclass(frozen=True)
class Advisory:
    """A vulnerability of NVIDIA's container toolkit, by which an image can harm the host.

    Attributes:
        cve: its id.
        severity: its CVSS base score.
        fixed: the first version without it; all before it have it.
        lets: what it lets an image do.
    """

    cve: str
    severity: float
    fixed: tuple[int, ...]
    lets: str


@dataclasses.dataclass(frozen=True)
class Fault:
    """A behaviour that some versions of the toolkit change or break.

    Attributes:
        first: the first version that has it; empty: all before `fixed`.
        fixed: the first one without it; empty: none yet.
        breaks: what, for the operator.
        here: the effect on this charm's workers; empty: it harms tasks here too, and status
            shows it.
    """

    first: tuple[int, ...]
    fixed: tuple[int, ...]
    breaks: str
    here: str


# NVIDIA's product-security bulletins (github.com/NVIDIA/product-security) up to number 5850.
ADVISORIES: typing.Final = (
    Advisory("CVE-2024-0132", 9.0, (1, 16, 2), "reach the host's files by a race (TOCTOU)"),
    Advisory("CVE-2024-0133", 4.1, (1, 16, 2), "make empty files on the host"),
    Advisory("CVE-2024-0134", 4.1, (1, 17, 0), "make files on the host"),
    Advisory("CVE-2024-0135", 7.6, (1, 17, 1), "change a program of the host"),
    Advisory("CVE-2024-0136", 7.6, (1, 17, 1), "read and write the host's devices"),
    Advisory("CVE-2024-0137", 5.5, (1, 17, 1), "run in the host's network"),
    Advisory("CVE-2025-23359", 8.3, (1, 17, 4), "get round the fix of CVE-2024-0132"),
    Advisory("CVE-2025-23266", 9.0, (1, 17, 8), "run its own code as root in a hook (LD_PRELOAD)"),
    Advisory("CVE-2025-23267", 8.5, (1, 17, 8), "write the host's files by a link it has"),
    Advisory("CVE-2026-24260", 8.5, (1, 19, 1), "write the host's files by a race in the hooks"),
)

# Faults without an issue were found by reading the toolkit's source of 1.17.8, 1.18.0, 1.19.1 and
# 1.20.0 and its CHANGELOG.md, and by running 1.17.8 and 1.20.0 on simulated GPUs.
FAULTS: typing.Final = (
    Fault(
        (),
        (1, 13, 0),
        "Devices requested by annotations cannot be refused, as annotation-prefixes is missing.",
        "Too old: Blocked, whatever allow-vulnerable-toolkit says.",
    ),
    Fault(
        (1, 17, 0),
        (1, 17, 2),
        "Images with CUDA_VERSION but no NVIDIA_REQUIRE_CUDA fail (unsupported IMEX channel "
        "value: all)",
        "",
    ),
    Fault(
        (),
        (1, 18, 0),
        "The mode auto is legacy: in an unprivileged LXD container no task starts "
        "(bpf_prog_query(BPF_CGROUP_DEVICE) failed), and on a machine systemctl daemon-reload "
        "takes the GPUs from containers that run.",
        "None in LXD: the runtime's private configuration has no-cgroups there. On a machine, as "
        "for everybody.",
    ),
    Fault(
        (1, 18, 0),
        (1, 18, 2),
        "NVIDIA_VISIBLE_DEVICES=none gives all GPUs.",
        "None: the GPU runtime writes UUIDs or void.",
    ),
    Fault(
        (1, 18, 0),
        (),
        "The mode auto is jit-cdi: the toolkit ignores NVIDIA_DRIVER_CAPABILITIES and "
        "NVIDIA_REQUIRE_*, PCI addresses name no GPU, and kind with nvkind before its #66 fails "
        "at umount /proc/driver/nvidia.",
        "Containers see every library of the driver. The charm's runtime checks "
        "NVIDIA_REQUIRE_* and names GPUs by UUID.",
    ),
    Fault(
        (),
        (1, 20, 0),
        "An upgrade of the package may put settings of config.toml back to their defaults.",
        "None: the runtime's configuration is a private one.",
    ),
    Fault(
        (1, 19, 0),
        (),
        "A config.json with a field that OCI does not know fails the container.",
        "None: the GPU runtime adds no such field.",
    ),
    Fault(
        (1, 19, 0),
        (),
        "CDI files are of version 0.7.0, which containerd before 1.7.16, Docker before 26.1 and "
        "kind's containerd refuse.",
        "None: tasks' containers are made without CDI files.",
    ),
    Fault(
        (1, 20, 0),
        (),
        "A GPU that is named twice drops all GPUs of the container, without an error.",
        "None: the GPU runtime names each once.",
    ),
    Fault(
        (1, 20, 0),
        (),
        "nvidia-ctk runtime configure --cdi.enabled drops the other features in Docker's "
        "daemon.json.",
        "None: the charm does not call it.",
    ),
)

# The first version that can ignore annotations (its CHANGELOG.md, 1.13.0-rc.3).
OLDEST: typing.Final = "1.13.0"
# The first version without a known vulnerability, such as `1.19.1`.
SAFE: typing.Final = ".".join(map(str, max(one.fixed for one in ADVISORIES)))
# The newest version that the GPU runtime was tested with; its package is the default.
TESTED: typing.Final = "1.20.0"
KNOWN_GOOD: typing.Final = f"{TESTED}-1"


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version that count: a package's own revision changes nothing."""
    return versions.numbers(version)[:3]


def advisories(version: str) -> tuple[Advisory, ...]:
    """The vulnerabilities that a version of the container toolkit has, such as `1.17.8-1`."""
    return tuple(one for one in ADVISORIES if release(version) < one.fixed)


def faults(version: str) -> tuple[Fault, ...]:
    """What a version is known to break."""
    found = release(version)
    return tuple(
        one for one in FAULTS if one.first <= found and (not one.fixed or found < one.fixed)
    )


def is_too_old(version: str) -> bool:
    """Whether the GPU runtime cannot keep devices from a container with this version."""
    return release(version) < release(OLDEST)


def is_untested(version: str) -> bool:
    """Whether it is newer than the newest tested version."""
    return release(version) > release(TESTED)
