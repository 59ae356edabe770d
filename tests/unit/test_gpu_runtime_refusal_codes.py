# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Each refusal has a code of the table, and each code of the table is used and documented."""

import json
import re

import pytest

from gpu_runtime import refusal
from gpu_runtime.decision_log import Decision
from gpu_runtime.refusal import Refused
from gpu_runtime.refusal_codes import CODES
from tests.unit.refusals import ROOT, code_of, made_in

TEMPLATES = ROOT / "lib/gpu_agent/templates"
# Codes that are not an argument of an exception, with the files that write them.
WRITTEN = {
    "internal-error": ["lib/gpu_runtime/refusal.py"],
    "not-confined": ["lib/gpu_agent/gpu_run/__main__.py"],
    "runtime-damaged": ["lib/gpu_runtime/__main__.py"],
}


def in_source():
    """The codes in each place of the product that makes a refusal."""
    found = {}
    for folder in ("lib/gpu_runtime", "lib/gpu_agent"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found |= {f"{folder}/{place}": codes for place, codes in made_in(path).items()}
    for name in ("runc", "gpu-ci"):
        text = (TEMPLATES / name).read_text()
        found[name] = re.findall(r"\b(?:refuse |code=)([a-z]+(?:-[a-z]+)+)", text)
    return found


def test_no_refusal_has_a_code_outside_the_table():
    found = in_source()
    assert len(found) > 50
    assert {place: codes for place, codes in found.items() if not CODES.keys() >= {*codes}} == {}


def test_no_code_of_the_table_is_unused():
    used = {code for codes in in_source().values() for code in codes}
    for code, names in WRITTEN.items():
        assert all(f'"{code}"' in (ROOT / name).read_text() for name in names), code
    assert CODES.keys() == used | WRITTEN.keys()


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_in_kebab_case_and_its_meaning_is_one_sentence(code):
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", code)
    assert re.fullmatch(r"[A-Zgs][^.]*\.", CODES[code])


def test_each_code_has_one_entry_in_the_reference_and_each_entry_a_code():
    text = (ROOT / "docs/reference/errors.md").read_text()
    entries = re.findall(r"^### `(.+)`$", text, re.M)
    assert sorted(entries) == sorted(CODES)
    for entry in re.split(r"^### ", text, flags=re.M)[1:]:
        assert re.search(r"^    \S", entry, re.M), entry
        assert "\n- Author: " in entry, entry
        assert "\n- Operator: " in entry, entry


def test_the_runtimes_log_has_the_code_as_a_field_and_before_the_text(tmp_path):
    log = tmp_path / "log.json"
    refusal.write(str(log), "wait-timeout", "it took too long")
    entry = json.loads(log.read_text())
    assert entry["msg"] == "gpu-ci-worker: wait-timeout: it took too long"
    assert (entry["level"], entry["code"]) == ("error", "wait-timeout")
    assert code_of(f"runc create failed: {entry['msg']}: unknown") == "wait-timeout"


def test_a_decision_has_the_code_and_grants_nothing(tmp_path):
    decision = Decision("c")
    decision.kind, decision.granted = "task", ["GPU-a"]
    decision.write(str(tmp_path / "oci.log"))
    decision.refuse(Refused("too-few-gpus", "there are 2"))
    decision.write(str(tmp_path / "oci.log"))
    granted, refused = map(json.loads, (tmp_path / "oci.log").read_text().splitlines())
    assert (granted["code"], granted["reason"], granted["granted"]) == ("", "", ["GPU-a"])
    assert refused["code"] == "too-few-gpus"
    assert (refused["reason"], refused["granted"]) == ("there are 2", [])
