# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""An action's parameters: as they are typed, and whether they fit what the charm declares.

Texts: Juju 4.0.15, cmd/juju/action/run.go, domain/deployment/charm/actions.go, and the
gojsonschema that this uses.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.lab.errors import WrongUse

TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
KEY = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def typed(pairs: Mapping[str, str], string_args: bool = False) -> dict[str, Any]:
    """What the client sends: each value read as YAML, dotted keys nested.

    Args:
        pairs: as the operator typed them.
        string_args: leave values as they are typed.

    Raises:
        WrongUse: a key that cannot be, or a value that is no YAML.
    """
    found: dict[str, Any] = {}
    for path, text in pairs.items():
        *parents, last = path.split(".")
        for part in (*parents, last):
            if not KEY.fullmatch(part):
                raise WrongUse(
                    f'key "{part}" must start and end with lowercase alphanumeric, and contain '
                    "only lowercase alphanumeric and hyphens"
                )
        node = found
        for part in parents:
            node = node.setdefault(part, {})
        try:
            node[last] = text if string_args else yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise WrongUse(f"{path}={text} is no YAML: quote it, or use --string-args") from error
    return found


def problem(name: str, spec: Mapping[str, Any] | None, params: Mapping[str, Any]) -> str:
    """Why the unit cannot run an action with these parameters; empty when it can."""
    wrong = [
        f"{where} : {why}, given {json.dumps(value, separators=(',', ':'))}"
        for where, why, value in _misfits(spec or {}, params)
    ]
    return f'cannot run "{name}" action: validation failed: {"; ".join(wrong)}' if wrong else ""


def with_defaults(spec: Mapping[str, Any] | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the action gets them."""
    known = (spec or {}).get("params") or {}
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
    kind = schema.get("type", "")
    is_other = isinstance(value, bool) and kind != "boolean"
    if kind and (is_other or not isinstance(value, TYPES[kind])):
        yield f"must be of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"must match one of the enum values [{','.join(map(json.dumps, schema['enum']))}]"
    if kind == "string" and len(value) < schema.get("minLength", 0):
        yield f"string length must be greater or equal to {schema['minLength']}"
    if kind == "string" and len(value) > schema.get("maxLength", len(value)):
        yield f"string length must be lower or equal to {schema['maxLength']}"
    if kind in ("integer", "number") and value < schema.get("minimum", value):
        yield f"must be greater than or equal to {schema['minimum']}"
    if kind in ("integer", "number") and value > schema.get("maximum", value):
        yield f"must be lower than or equal to {schema['maximum']}"
