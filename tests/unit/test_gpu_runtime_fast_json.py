# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Our JSON is the standard library's: equal values, equal texts, equal refusals."""

import json
import pathlib
import sys
import types

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from gpu_runtime import fast_json as jsontext
from tests.unit.grants import golden
from tests.unit.wrapper_rig import GOLDEN

PATIENT = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300
)
NUMBERS = some.integers() | some.floats(allow_nan=False, allow_infinity=False)
TEXTS = some.text(some.characters(exclude_categories=()), max_size=12)
VALUES = some.recursive(
    some.none() | some.booleans() | NUMBERS | TEXTS,
    lambda inner: some.lists(inner) | some.dictionaries(TEXTS, inner),
    max_leaves=20,
)
FRAGMENTS = some.lists(
    some.sampled_from(
        [
            *('{"', '"}', '":', "[", "]", ",", "1", "-", "0", ".5", "e9", "true", "nul", "null"),
            *("NaN", "-Infinity", '"\\u00', '41"', '"\\ud800"', '"\\/"', '"\\x"', " ", "\n"),
            *('"a"', '"\x01"', "\ufeff", '{"a":1,"a":2}', "\xa0", "1" * 4400, "\x00", "//"),
        ]
    ),
    max_size=6,
).map("".join)


def no_constant(name):
    raise ValueError(name)


def standard(content):
    try:
        return json.loads(content.decode(), parse_constant=no_constant)
    except ValueError:
        return ValueError


def ours(content):
    try:
        return jsontext.loads(content)
    except ValueError:
        return ValueError


@PATIENT
@given(VALUES)
def test_any_value_is_written_and_read_as_json_does(value):
    written = jsontext.dumps(value)
    assert written == json.dumps(value, separators=(",", ":"), allow_nan=False)
    assert written.isascii()
    # Compared as text: 1 == 1.0 == True.
    assert repr(jsontext.loads(written.encode())) == repr(json.loads(written))


@PATIENT
@given(some.binary(max_size=40) | FRAGMENTS.map(lambda text: text.encode(errors="replace")))
@example(b"")
@example(b'\xef\xbb\xbf{"a":1}')
@example('{"a":1}'.encode("utf-16"))
@example(b'"\xed\xa0\x80"')
@example("\xa01".encode())
@example(b"1\x0b")
@example(b"\x1f1")
@example(b" \t\r\n1 \t\r\n")
@example(b"1 2")
@example(b"[1,]")
@example(b'"\t"')
def test_any_text_is_read_or_refused_as_json_does(content):
    assert repr(ours(content)) == repr(standard(content))


@PATIENT
@given(some.data())
def test_a_damaged_spec_is_read_or_refused_as_json_does(data):
    content = bytearray(json.dumps(golden("task"), separators=",:").encode())
    for _ in range(data.draw(some.integers(1, 3))):
        content[data.draw(some.integers(0, len(content) - 1))] = data.draw(some.integers(0, 255))
    assert repr(ours(bytes(content))) == repr(standard(bytes(content)))


@pytest.mark.parametrize("open_and_close", [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_too_deeply_is_refused(open_and_close):
    before, after = open_and_close
    content = (before * 200_000 + "1" + after * 200_000).encode()
    with pytest.raises(ValueError, match="nested too deeply"):
        jsontext.loads(content)
    value = []
    for _ in range(200_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        jsontext.dumps(value)
    while value:  # freed in one go, it would end the interpreter
        value = value.pop()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), {"a": [1e999]}])
def test_numbers_that_json_lacks_are_not_written(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsontext.dumps(number)


def test_what_has_no_json_form_is_not_written():
    with pytest.raises(TypeError, match="set has no JSON form"):
        jsontext.dumps({"a": {1}})


def test_without_cpythons_private_half_json_itself_takes_its_place(monkeypatch):
    monkeypatch.setitem(sys.modules, "_json", None)
    fallback = types.ModuleType("fallback")
    exec(pathlib.Path(jsontext.__file__).read_text(), vars(fallback))
    assert fallback._scan != jsontext._scan
    for name in ("task", "get", "check"):
        value = golden(name)
        assert fallback.dumps(value) == jsontext.dumps(value)
        assert fallback.loads(fallback.dumps(value).encode()) == value
    for wrong in (b"", b"[1,]", b"1 2", b"NaN", b"\xff", b"[" * 200_000):
        with pytest.raises(ValueError, match=r"it |follows|decode|trailing comma"):
            fallback.loads(wrong)
    with pytest.raises(TypeError, match="set has no JSON form"):
        fallback.dumps({1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        fallback.dumps(float("nan"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"mounts":[],"mounts":[]}', "a name twice"),
        ('{"Mounts":[]}', "'Mounts'"),
        ('{"mount\u017f":[]}', "a known name in another case"),
        ('{"linux":{"resources":{"devices":[{"alloW":true}]}}}', "'alloW'"),
        ('{"annotations":{"a":{"Env":1}}}', "'Env'"),
    ],
)
def test_what_go_would_read_otherwise_is_refused(text, said):
    assert jsontext.loads(text.encode())
    with pytest.raises(ValueError, match=said):
        jsontext.loads(text.encode(), jsontext.SPEC)


def test_names_that_people_choose_may_differ_in_case_from_a_specs():
    chosen = {"Env": "1", "ENV": "2", "Mounts": "3"}
    spec = {"annotations": chosen, "linux": {"sysctl": chosen, "resources": {"unified": chosen}}}
    assert jsontext.loads(json.dumps(spec).encode(), jsontext.SPEC) == spec
    image = {"config": {"Env": ["A=b"], "Labels": {"env": "x", "config": "y"}, "User": ""}}
    assert jsontext.loads(json.dumps(image).encode(), jsontext.IMAGE) == image


@pytest.mark.parametrize(
    "path", sorted([*GOLDEN.glob("*.json"), *GOLDEN.parent.glob("recorded/docker*/**/*.json")])
)
def test_what_runtimes_and_engines_write_is_read_as_go_reads_it(path):
    content = path.read_bytes()
    assert jsontext.loads(content, jsontext.SPEC) == json.loads(content)
