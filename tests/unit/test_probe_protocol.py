# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the child says is taken word by word, or not at all."""

import dataclasses
import json
import random

import pytest

from gpu_agent.gpu.probe import probe_protocol as wire
from gpu_agent.model.card import Card, Figures

UUIDS = frozenset({"GPU-0", "GPU-1"})
FULL = Figures(
    failure="", busy=100, memory_used_mib=1, memory_total_mib=81920, power_w=399.5,
    power_limit_w=400.0, energy_j=1e12, temperature=90, sm_clock_mhz=1410, reasons=0x48,
    ecc_corrected=1, ecc_uncorrected=2, remap_pending=False, remap_failed=True, recovery_action=2,
    pids=(1, 4711), drawing=2,
)  # fmt: skip
SAID = [
    wire.Begun(),
    wire.Beat(),
    wire.Event("GPU-0", "", 79, "some words"),
    wire.Event("GPU-1", "recovery"),
    wire.One("GPU-0", FULL),
    wire.One("GPU-1", Figures()),
    wire.One("GPU-1", Figures(failure="GPU is lost", pids=())),
    wire.End(),
    wire.End(("GPU-0",), ("GPU-1",)),
    wire.End(scarce="/dev/null: Too many open files"),
    wire.Note("without NVML's events: Not Supported"),
]


@pytest.mark.parametrize("said", SAID, ids=str)
def test_what_is_packed_is_unpacked(said):
    line = wire.pack(said)
    assert b"\n" not in line
    assert wire.unpack(line, UUIDS) == said


def test_every_field_of_the_figures_travels():
    told = {field.name for field in dataclasses.fields(Figures)} - {"failure"}
    assert all(getattr(FULL, name) is not None for name in told)


def test_cards_travel():
    cards = [Card("GPU-0", 0, "0000:01:00.0", "A100", ("MIG-1",))]
    assert wire.unpack_cards(wire.pack_cards(cards)) == {"GPU-0": "0000:01:00.0"}


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        "begun",
        {"begun": {}, "beat": {}},
        {"begun": []},
        {"begun": {"more": 1}},
        {"other": {}},
        {"event": {}},
        {"event": {"uuid": "GPU-2"}},
        {"event": {"uuid": ["GPU-0"]}},
        {"event": {"uuid": "GPU-0", "xid": "79"}},
        {"event": {"uuid": "GPU-0", "xid": True}},
        {"event": {"uuid": "GPU-0", "xid": -1}},
        {"event": {"uuid": "GPU-0", "text": "two\nlines"}},
        {"event": {"uuid": "GPU-0", "text": "x" * 301}},
        {"event": {"uuid": "GPU-0", "fault": 1}},
        {"one": {"uuid": "GPU-0"}},
        {"one": {"uuid": "GPU-0", "figures": 1}},
        {"one": {"uuid": "GPU-0", "figures": {"more": 1}}},
        {"one": {"uuid": "GPU-0", "figures": {"busy": 1.5}}},
        {"one": {"uuid": "GPU-0", "figures": {"busy": 1 << 64}}},
        {"one": {"uuid": "GPU-0", "figures": {"power_w": float("nan")}}},
        {"one": {"uuid": "GPU-0", "figures": {"power_w": float("inf")}}},
        {"one": {"uuid": "GPU-0", "figures": {"remap_failed": 1}}},
        {"one": {"uuid": "GPU-0", "figures": {"pids": 1}}},
        {"one": {"uuid": "GPU-0", "figures": {"pids": ["1"]}}},
        {"one": {"uuid": "GPU-0", "figures": {"pids": list(range(5000))}}},
        {"one": {"uuid": "GPU-0", "figures": {"failure": None}}},
        {"end": {"missing": "GPU-0"}},
        {"end": {"missing": ["GPU-2"]}},
        {"end": {"gone": 1}},
        {"end": {"scarce": 1}},
        {"note": {"text": "\x1b[2J"}},
    ],
    ids=str,
)
def test_what_nobody_here_says_is_refused(said):
    with pytest.raises(wire.GarbledError):
        wire.unpack(json.dumps(said).encode(), UUIDS)


@pytest.mark.parametrize("line", [b"", b"\xff", b"[" * 100_000, b"x" * 60_000])
def test_what_is_no_json_is_refused(line):
    with pytest.raises(wire.GarbledError):
        wire.unpack(line, UUIDS)


def test_a_damaged_line_is_refused_or_means_something():
    chance = random.Random(14)
    lines = [wire.pack(said) for said in SAID]
    for _ in range(5000):
        line = bytearray(chance.choice(lines))
        for _ in range(chance.randint(1, 3)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        try:
            said = wire.unpack(bytes(line), UUIDS)
        except wire.GarbledError:
            continue
        assert wire.unpack(wire.pack(said), UUIDS) == said
