# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An action's parameters: as they are typed, and whether they fit what the charm declares.

Texts: Juju 4.0.15, domain/deployment/charm/actions.go, and the gojsonschema that this uses. Of
the schema it knows what actions.yaml has: strings and booleans.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.lab.errors import WrongUse

TYPES = {"string": str, "boolean": bool}


def typed(pairs: Mapping[str, str]) -> dict[str, Any]:
    """What the client sends: each value read as YAML.

    Raises:
        WrongUse: a value is no YAML.
    """
    try:
        return {key: yaml.safe_load(text) for key, text in pairs.items()}
    except yaml.YAMLError as error:
        raise WrongUse(f"a parameter is no YAML, quote it: {error}") from error


def problem(name: str, spec: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Why the unit cannot run an action with these parameters; empty when it can."""
    wrong = [
        f"{where} : {why}, given {json.dumps(value, separators=(',', ':'))}"
        for where, why, value in _misfits(spec, params)
    ]
    return f'cannot run "{name}" action: validation failed: {"; ".join(wrong)}' if wrong else ""


def with_defaults(spec: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the action gets them."""
    known = spec.get("params") or {}
    return {key: p["default"] for key, p in known.items() if "default" in p} | dict(params)


def _misfits(spec: Mapping[str, Any], params: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Where, why, and of what value."""
    known = spec.get("params") or {}
    for key in spec.get("required") or ():
        if key not in params:
            yield "(root)", f'"{key}" property is missing and required', params
    for key, value in params.items():
        if key in known:
            for why in _why_not(known[key], value):
                yield f"(root).{key}", why, value
        elif spec.get("additionalProperties") is False:
            yield "(root)", f'additional property "{key}" is not allowed', params


def _why_not(schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    if not isinstance(value, TYPES[schema["type"]]):
        yield f"must be of type {schema['type']}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"must match one of the enum values [{','.join(map(json.dumps, schema['enum']))}]"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"string length must be greater or equal to {schema['minLength']}"
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        yield f"string length must be lower or equal to {schema['maxLength']}"
