# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The well-known paths of this machine that more than one package uses."""

import typing
from pathlib import Path

TEMPLATES = Path(__file__).resolve().with_name("templates")  # what the agent renders

STATE: typing.Final = Path("/var/lib/gpu-ci")  # state that outlasts a hook
QUARANTINE: typing.Final = STATE / "quarantine"
EXTERNAL: typing.Final = Path("/run/gpu-ci/cordons")
"""Records of GPUs that are in use outside CI or unusable: a file `<UUID>.json` each.

The folder keeps its name, since runtimes of two revisions read it while a unit is refreshed.
"""

CLOSED: typing.Final = STATE / "closed"
"""Records of GPUs that no request gets, since the unit is drained or paused; reboots keep them."""

PYTHON = "/usr/bin/python3"  # the distribution's own: 3.10 on Ubuntu 22.04, 3.12 on 24.04

HOME = Path("/opt/gpu-ci")
BIN = HOME / "bin"
FRONT = BIN / "runc"
SELFTEST = BIN / "gpu-selftest"
LIB = HOME / "lib"
# A link. It has the package's old name, which runtimes of an earlier revision still use.
BACK_END = LIB / "gpuci"
# For people; containerd does not find it by this name.
LINK = Path("/usr/local/bin/runc-gpu-wrapper")
CONFIG = Path("/etc/gpu-ci")
POLICY = CONFIG / "policy.json"
# The runtime of podman and Docker (see gpu_agent.engines.front).
ENGINES = HOME / "engines"
ENGINES_CONFIG = CONFIG / "engines"
RUN = Path("/run/gpu-ci")
STORE = RUN / "leases"
LOG = Path("/var/log/gpu-ci/oci.log")


def is_for_engines(path: str) -> bool:
    """Whether a file belongs to podman's and Docker's runtime, which tasks do not use."""
    return not {ENGINES, ENGINES_CONFIG}.isdisjoint((Path(path), *Path(path).parents))
