# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""nvidia-container-runtime's configuration as this worker's CI tasks get it, private to them."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast

import tomlkit
import tomlkit.exceptions

from machine import files
from machine.errors import PartError

PACKAGED = Path("/etc/nvidia-container-runtime/config.toml")

_UID_MAP = Path("/proc/self/uid_map")
_WHOLE = ["0", "0", "4294967295"]

_REMEDY = "repair it, or reinstall nvidia-container-toolkit-base, which writes it again"

Table = MutableMapping[str, Any]


class ConfigError(PartError):
    """The packaged configuration can't be taken as a base; the text says what to do."""


def folder(config_home: Path) -> Path:
    """Where the runtime looks for its configuration when XDG_CONFIG_HOME is `config_home`."""
    return config_home / "nvidia-container-runtime"


def configure(config_home: Path, runc: str) -> bool:
    """Write the private configuration below `config_home`; return True if that changed it.

    Raises:
        ConfigError: the packaged one can't be taken as a base.
    """
    # The caller's own, in which the runtime runs too (user_namespaces(7)).
    nested = _UID_MAP.read_text(encoding="utf-8").split() != _WHOLE
    content = private_config(files.read_text(PACKAGED) or "", runc, nested=nested)
    files.ensure_directory(folder(config_home))
    return files.ensure_file(folder(config_home) / "config.toml", content)


def private_config(base: str, runc: str, *, nested: bool = False) -> str:
    """The configuration `base` with this wrapper's needs in it; all else, comments too, stays.

    - `runtimes` is the one absolute path: by the name runc it would find our wrapper again.
    - No annotation, volume mount or swarm-resource asks for devices, only the variable, which the
      wrapper owns (nvidia-container-toolkit 1.20 internal/config/image/cuda_image.go).
    - No debug log, which would grow without end.
    - Where it runs `nested` in a user namespace, as in an unprivileged LXD container, the mode
      legacy of releases before 1.18 leaves device rules alone: it may not set any, and runc sets
      none (libnvidia-container issue 154).

    Raises:
        ConfigError: `base` is no TOML, or has something else where a table should be.
    """
    try:
        document = cast(Table, tomlkit.parse(base))
    except tomlkit.exceptions.TOMLKitError as error:
        raise ConfigError(f"{PACKAGED} cannot be read: {error}; {_REMEDY}") from error
    document.pop("swarm-resource", None)
    document["accept-nvidia-visible-devices-as-volume-mounts"] = False
    document["accept-nvidia-visible-devices-envvar-when-unprivileged"] = True
    runtime = _table(document, "nvidia-container-runtime")
    runtime["runtimes"] = [runc]
    _table(_table(runtime, "modes"), "cdi")["annotation-prefixes"] = []
    if nested:
        _table(document, "nvidia-container-cli")["no-cgroups"] = True
    for name in ("nvidia-container-runtime", "nvidia-container-cli"):
        if name in document:
            _table(document, name).pop("debug", None)
    return tomlkit.dumps(document)


def faults(content: str, runc: str) -> tuple[str, ...]:
    """What a configuration does otherwise than private_config has it, as clauses; empty if right.

    The meaning counts, not the text: missing settings have the toolkit's defaults (1.20
    api/config/v1/config.go, internal/config/image/builder.go).
    """
    try:
        document = tomlkit.parse(content).unwrap()
    except tomlkit.exceptions.TOMLKitError as error:
        return (f"it is not TOML: {error}",)
    runtime = _value(document, "nvidia-container-runtime")
    runtimes = _value(runtime, "runtimes")
    prefixes = _value(runtime, "modes", "cdi", "annotation-prefixes")
    volumes, variables = (
        document.get(f"accept-nvidia-visible-devices-{way}")
        for way in ("as-volume-mounts", "envvar-when-unprivileged")
    )
    found = {
        f"runtimes is {runtimes}, not {[runc]}": runtimes != [runc],
        "annotation-prefixes is not empty, so annotations ask for GPUs": prefixes != [],
        "volume mounts ask for GPUs": volumes not in (None, False),
        "variables of tasks that are not privileged ask for none": variables not in (None, True),
        "swarm-resource names another variable that asks for GPUs": "swarm-resource" in document,
    }
    return tuple(clause for clause, wrong in found.items() if wrong)


def _value(table: Any, *names: str) -> Any:
    """The value below tables of these names; None if one is missing or not a table."""
    for name in names:
        table = cast(Table, table).get(name) if isinstance(table, Mapping) else None
    return table


def _table(parent: Table, name: str) -> Table:
    if name not in parent:
        parent[name] = tomlkit.table()
    found = parent[name]
    if not isinstance(found, MutableMapping):
        raise ConfigError(f"{name} is not a table in {PACKAGED}; {_REMEDY}")
    return cast(Table, found)
