# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a packed charm declares, and whether options fit it."""

import dataclasses
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import yaml

from tests.lab.errors import WrongUse

OPTION_TYPES = {"string": str, "secret": str, "int": int, "boolean": bool}


@dataclasses.dataclass(frozen=True)
class CharmMeta:
    """What matters of a charm's yaml files.

    Attributes:
        name: the charm's name.
        endpoints: name -> {"role": provides, requires or peers, "interface": its name}.
        options: config.yaml's options.
        actions: actions.yaml.
        resources: name -> file name.
    """

    name: str
    endpoints: dict[str, dict[str, Any]]
    options: dict[str, dict[str, Any]]
    actions: dict[str, dict[str, Any]]
    resources: dict[str, str]


def read(path: pathlib.Path) -> CharmMeta:
    """Read a .charm file.

    Raises:
        WrongUse: it is not a packed charm.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            parts = {
                part: yaml.safe_load(archive.read(f"{part}.yaml")) or {}
                for part in ("metadata", "config", "actions")
                if f"{part}.yaml" in names
            }
            metadata = parts["metadata"]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise WrongUse(f"cannot read the charm {path}: {error}") from error
    endpoints = {
        name: {"role": role, "interface": spec["interface"]}
        for role in ("provides", "requires", "peers")
        for name, spec in (metadata.get(role) or {}).items()
    }
    resources = metadata.get("resources") or {}
    return CharmMeta(
        name=metadata["name"],
        endpoints=endpoints,
        options=parts.get("config", {}).get("options") or {},
        actions=parts.get("actions", {}),
        resources={name: spec.get("filename", name) for name, spec in resources.items()},
    )


def parse_options(
    options: Mapping[str, Mapping[str, Any]], values: Mapping[str, str]
) -> dict[str, Any]:
    """Options' values from what the operator typed.

    Raises:
        WrongUse: there is no such option, or a value has another type.
    """
    found: dict[str, Any] = {}
    for name, text in values.items():
        if name not in options:
            raise WrongUse(f"unknown option {name!r}: the charm has {', '.join(sorted(options))}")
        kind = options[name].get("type", "string")
        if kind == "secret" and text and not text.startswith("secret:"):
            raise WrongUse(f"option {name!r} wants the URI of a secret, not {text!r}")
        value = text if kind in ("string", "secret") else yaml.safe_load(text)
        if type(value) is not OPTION_TYPES[kind]:
            raise WrongUse(f"option {name!r} expected type {kind}, got {text!r}")
        found[name] = value
    return found
