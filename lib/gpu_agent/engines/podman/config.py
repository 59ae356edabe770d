# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime with podman in a separate file beside the operator's.

podman reads these files at each call, and later files override earlier ones (containers.conf(5)),
so nothing has to be restarted.
"""

import collections.abc
from pathlib import Path
from typing import Any, Final, cast

import tomlkit
import tomlkit.exceptions

from gpu_agent.engines import front
from gpu_agent.engines.engine import EngineError
from machine import files

_FOLDER: Final = Path("/etc/containers/containers.conf.d")
DROP_IN: Final = _FOLDER / "gpu-ci.conf"
_MAIN: Final = Path("/etc/containers/containers.conf")


def ensure(*, default: bool) -> bool:
    """Register the runtime with podman; return True if anything was changed.

    Args:
        default: whether containers that name no runtime get this one.

    Raises:
        EngineError: the operator has another runtime of that name or as default.
    """
    for path in (_MAIN, *files.entries(_FOLDER)):
        if path != DROP_IN and path.suffix == ".conf":
            _check(path, default=default)
    files.ensure_directory(DROP_IN.parent.parent)
    files.ensure_directory(DROP_IN.parent)
    return files.ensure_file(DROP_IN, _content(default=default))


def remove() -> bool:
    """Remove the runtime; return True if podman had it."""
    changed = files.ensure_absent(DROP_IN)
    files.remove_if_empty(DROP_IN.parent)
    files.remove_if_empty(DROP_IN.parent.parent)
    return changed


def _content(*, default: bool) -> str:
    lines = ["# Written by the charm gpu-ci-worker, which also removes it."]
    if default:
        lines += ["[engine]", 'runtime = "gpu-ci"']
    return "\n".join([*lines, "[engine.runtimes]", f'gpu-ci = ["{front.FRONT}"]', ""])


def _check(path: Path, *, default: bool) -> None:
    try:
        found = tomlkit.parse(files.read_text(path) or "").unwrap()
    except tomlkit.exceptions.TOMLKitError as error:
        raise EngineError(f"{path} cannot be read: {error}; repair it") from error
    engine = _table(found.get("engine"))
    runtimes = _table(engine.get("runtimes"))
    if runtimes.get("gpu-ci", [str(front.FRONT)]) != [str(front.FRONT)]:
        raise EngineError(f"{path} has another runtime named gpu-ci: remove it there")
    chosen = engine.get("runtime", "gpu-ci")
    if default and chosen != "gpu-ci":
        raise EngineError(
            f"{path} sets podman's default runtime to {chosen}: remove that there, or remove "
            "=default from podman in container-engines"
        )


def _table(value: object) -> collections.abc.Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
