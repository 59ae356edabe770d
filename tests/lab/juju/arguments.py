# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Hook commands' arguments and output, as Juju's (gnuflag and its formatters) have them."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import yaml

from tests.lab.juju.context import ArgumentError


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What was given: options by their long name, and the rest."""

    options: dict[str, str]
    rest: list[str]

    def get(self, name: str) -> str:
        """An option's value; empty if it was not given."""
        return self.options.get(name, "")

    def flag(self, name: str) -> bool:
        """Whether a switch is on: --app, --app=true, --application=True."""
        return self.options.get(name, "false").lower() == "true"

    def first(self, missing: str) -> str:
        """The first argument.

        Raises:
            ArgumentError: there is none; says what is missing.
        """
        if not self.rest:
            raise ArgumentError(missing)
        return self.rest[0]


def parse(arguments: list[str], valued: str = "", switches: str = "") -> Arguments:
    """Split arguments.

    Args:
        arguments: without the command's name.
        valued: names of the options that take a value; `r:relation` is short for another one.
        switches: names of options without a value, or with one after `=`.

    Raises:
        ArgumentError: an unknown option.
    """
    aliases = dict(pair.split(":") for pair in valued.split() if ":" in pair)
    takes_value = {pair.rpartition(":")[2] for pair in valued.split()} | {"format"}
    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(arguments)
    while left:
        item = left.pop(0)
        if item == "--":
            return Arguments(options, rest + left)
        if not item.startswith("-") or item == "-":
            rest.append(item)
            continue
        name, has_value, value = item.lstrip("-").partition("=")
        name = aliases.get(name, name)
        if name in takes_value:
            options[name] = value if has_value else left.pop(0)
        elif name in switches.split():
            options[name] = value if has_value else "true"
        else:
            raise ArgumentError(f"option provided but not defined: {item}")
    return Arguments(options, rest)


def pairs(items: list[str]) -> dict[str, str]:
    """`key=value` items as a mapping.

    Raises:
        ArgumentError: an item without `=`.
    """
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ArgumentError(f'expected "key=value", got "{item}"')
        found[key] = value
    return found


def show(arguments: Arguments, value: Any) -> str:
    """A command's output: JSON when asked for, else as a person (or a script) likes it."""
    if arguments.get("format") == "json":
        return json.dumps(value, sort_keys=True) + "\n"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"{value}\n"
    if isinstance(value, str):
        return value + "\n" if value else ""
    if isinstance(value, list):
        return "".join(f"{item}\n" for item in value)
    if isinstance(value, Mapping):
        return yaml.safe_dump(value, sort_keys=True) if value else ""
    return json.dumps(value) + "\n"
