# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""It as an engine, which keeps the runtime's path in a file."""

import os
import pathlib

from gpu_agent.engines import front
from gpu_agent.engines.engine import Engine


def _file() -> pathlib.Path:
    return pathlib.Path(os.environ["STUB_ENGINE"])


def _ensure(*, default: bool) -> bool:
    _file().write_text(f"{front.FRONT} {default}")
    return True


def _remove() -> bool:
    had = _file().exists()
    _file().unlink(missing_ok=True)
    return had


ENGINE = Engine("stub", _ensure, _remove, lambda _runtime: False, about="The stub changes a file.")
