# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What this unit must not forget between two hooks, in small files under /var/lib/gpu-ci."""

import pathlib
import typing
from pathlib import Path

STATE: typing.Final = pathlib.Path("/var/lib/gpu-ci")


CORDONS: typing.Final = pathlib.Path("/run/gpu-ci/cordons")
"""The folder: a file `<UUID>.json` with the reason each."""


PATH: typing.Final = pathlib.Path("/var/lib/gpu-ci/quarantine")


PYTHON = "/usr/bin/python3"  # the distribution's own: 3.10 on Ubuntu 22.04, 3.12 on 24.04
RUNC = "/opt/concourse/current/bin/runc"
CONTAINERD = "/opt/concourse/current/bin/containerd"

HOME = Path("/opt/gpu-ci")
BIN = HOME / "bin"
FRONT = BIN / "runc"
LAUNCHER = BIN / "containerd-launcher"
SELFTEST = BIN / "gpu-selftest"
LIB = HOME / "lib"
# A link. Its name is from before that of the package: fronts of that time call it still.
BACK_END = LIB / "gpuci"
LINK = Path(
    "/usr/local/bin/runc-gpu-wrapper"
)  # for people; its name keeps it out of containerd's way
CONFIG = Path("/etc/gpu-ci")
POLICY = CONFIG / "policy.json"
# The runtime of podman and Docker (see engines.front).
ENGINES = HOME / "engines"
ENGINES_CONFIG = CONFIG / "engines"
RUN = Path("/run/gpu-ci")
STORE = RUN / "leases"
LOG = Path("/var/log/gpu-ci/oci.log")


def is_for_engines(path: str) -> bool:
    """Whether a file is of podman's and Docker's runtime, and so nothing that tasks go through."""
    return not {ENGINES, ENGINES_CONFIG}.isdisjoint((Path(path), *Path(path).parents))
