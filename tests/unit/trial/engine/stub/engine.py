# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""It as an engine, which keeps the runtime's path in a file."""

import pathlib

from gpu_agent.engines import front
from gpu_agent.engines.engine import Engine
from machine import files

FILE = pathlib.Path("/etc/stub-engine")

ENGINE = Engine(
    "stub",
    lambda *, default: files.ensure_file(FILE, f"{front.PATH} {default}"),
    lambda: files.ensure_absent(FILE),
    lambda _runtime: False,
    about="The stub changes a file.",
)
