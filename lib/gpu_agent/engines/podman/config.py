# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Register the runtime with podman in a separate file beside the operator's.

podman reads these files at each call, and later files override earlier ones (containers.conf(5)),
so nothing has to be restarted.
"""

import collections.abc
import dataclasses
from pathlib import Path
from typing import Any, cast

import tomlkit
import tomlkit.exceptions

from gpu_agent.engines import front
from gpu_agent.engines.engine import EngineError
from machine import files


@dataclasses.dataclass(frozen=True)
class Config:
    """podman's configuration for all users, with the charm's file.

    Attributes:
        folder: has containers.conf, and beside it the folder containers.conf.d.
    """

    folder: Path = Path("/etc/containers")

    @property
    def drop_in(self) -> Path:
        """The charm's file."""
        return self._drop_ins / "gpu-ci.conf"

    def ensure(self, *, default: bool) -> bool:
        """Register the runtime with podman; return True if anything was changed.

        Args:
            default: whether containers that name no runtime get this one.

        Raises:
            EngineError: the operator has another runtime of that name or as default.
        """
        for path in (self.folder / "containers.conf", *files.entries(self._drop_ins)):
            if path != self.drop_in and path.suffix == ".conf":
                _check(path, default=default)
        files.ensure_directory(self.folder)
        files.ensure_directory(self._drop_ins)
        return files.ensure_file(self.drop_in, _content(default=default))

    def remove(self) -> bool:
        """Remove the runtime; return True if podman had it."""
        changed = files.ensure_absent(self.drop_in)
        files.remove_if_empty(self._drop_ins)
        files.remove_if_empty(self.folder)
        return changed

    @property
    def _drop_ins(self) -> Path:
        return self.folder / "containers.conf.d"


def _content(*, default: bool) -> str:
    lines = ["# Written by gpu-ci-worker, which also removes it."]
    if default:
        lines += ["[engine]", 'runtime = "gpu-ci"']
    return "\n".join([*lines, "[engine.runtimes]", f'gpu-ci = ["{front.PATH}"]', ""])


def _check(path: Path, *, default: bool) -> None:
    try:
        found = tomlkit.parse(files.read_text(path) or "").unwrap()
    except tomlkit.exceptions.TOMLKitError as error:
        raise EngineError(f"{path} cannot be read: {error}; repair it") from error
    engine = _table(found.get("engine"))
    runtimes = _table(engine.get("runtimes"))
    if runtimes.get("gpu-ci", [str(front.PATH)]) != [str(front.PATH)]:
        raise EngineError(f"{path} has another runtime named gpu-ci: remove it there")
    chosen = engine.get("runtime", "gpu-ci")
    if default and chosen != "gpu-ci":
        raise EngineError(
            f"{path} sets podman's default runtime to {chosen}: remove that there, or remove "
            "=default from podman in container-engines"
        )


def _table(value: object) -> collections.abc.Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
