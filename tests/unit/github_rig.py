# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Have conversations with GitHub on written answers, all held against GitHub's own description."""

import functools
import json
import pathlib
import re
import typing
import urllib.parse

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from ci.runners.service import Answer, Call, Talk

_DESCRIPTION = pathlib.Path(__file__).parent / "data/github-rest-api.json"
_Learned = typing.TypeVar("_Learned")


def answer(status: int, body: object = None, **headers: str) -> Answer:
    """Return an answer in JSON; `x_ratelimit_limit` is the header x-ratelimit-limit."""
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    seconds = float(found.get("retry-after", 0))
    return Answer(status, b"" if body is None else json.dumps(body).encode(), seconds, found)


def converse(conversation: Talk[_Learned], *answers: Answer) -> tuple[_Learned, list[Call]]:
    """Give these answers, no more and no fewer; return what is learned, and the calls."""
    calls: list[Call] = []
    try:
        call = next(conversation)
        for one in answers:
            calls.append(call)
            check(call, one)
            call = conversation.send(one)
    except StopIteration as done:
        assert len(calls) == len(answers), f"{len(calls)} of {len(answers)} answers were asked for"
        return done.value, calls
    raise AssertionError(f"one more call: {call}")


def check(call: Call, given: Answer) -> None:
    """Fail if GitHub's description has no such call, or no such answer to it."""
    parts = urllib.parse.urlsplit(call.path)
    found = [
        one for name, one in _operations() if re.fullmatch(name, f"{call.method} {parts.path}")
    ]
    assert found, f"no operation {call.method} {parts.path}"
    query = dict(urllib.parse.parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    for name, value in query.items():
        allowed = found[0]["query"][name]
        assert value in allowed.get("enum", [value]), f"{name}={value}"
    if call.body is not None:
        wanted = found[0]["request"]
        assert call.body.keys() <= wanted["properties"].keys()
        _valid(call.body, wanted, "request")
    if schema := found[0]["responses"].get(str(given.status)):
        _valid(json.loads(given.body), schema, "response")


@functools.cache
def _operations() -> list[tuple[str, dict[str, typing.Any]]]:
    described = json.loads(_DESCRIPTION.read_text())
    return [
        (re.sub(r"\{[a-z_]+\}", "[^/]+", name), one)
        for one in described
        for name in one["operations"]
    ]


def _valid(value: object, schema: dict[str, typing.Any], at: str) -> None:
    """Fail if a value is not what a schema says; only what the description here uses."""
    if value is None and schema.get("nullable"):
        return
    kinds = {
        "object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
        "number": (int, float),
    }  # fmt: skip
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), f"{at} is no {schema['type']}: {value!r}"
    assert value in schema.get("enum", [value]), f"{at} is {value!r}"
    if isinstance(value, dict):
        missing = {*schema.get("required", [])} - value.keys()
        assert not missing, f"{at} lacks {missing}"
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                _valid(value[name], inner, f"{at}.{name}")
    if isinstance(value, list):
        assert len(value) >= schema.get("minItems", 0)
        assert len(value) <= schema.get("maxItems", len(value))
        for number, one in enumerate(value):
            _valid(one, schema["items"], f"{at}[{number}]")


@functools.cache
def key() -> rsa.RSAPrivateKey:
    """Return a key of a GitHub App: of 2048 bits, as GitHub makes them."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(password: bytes | None = None) -> str:
    """Return the key in the form that GitHub gives it."""
    how = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key().private_bytes(serialization.Encoding.PEM, form, how).decode()
