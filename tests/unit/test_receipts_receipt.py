# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The form of a receipt: what is written comes back, and what is none is refused."""

import json

import pytest

from gpu_agent.reporting.receipts import log
from gpu_agent.reporting.receipts.receipt import GpuReceipt, Receipt, UnsoundError, cut, parse

FULL = Receipt(
    "2026-11-23T14:05:06.789Z",
    "2026-11-23T15:05:06.789Z",
    "4c0a7b3e-1111-4222-8333-000000000001",
    3600.25,
    "gpu failed",
    (
        GpuReceipt(
            "GPU-1", 0, "A100-SXM4-80GB", (), 3590.5, 3000.0, 71.5, 61000, 81920, 7.2e5,
            {"power cap": 12.0}, (79, 94), 3, 0, "off the bus: Xid 79",
        ),
        GpuReceipt("GPU-2", 1, "A100-SXM4-80GB", ("MIG-1",), xids=(31,)),
    ),
    "off the bus: Xid 79", 12.4, "main", "train", "unit", "42",
)  # fmt: skip
BARE = Receipt(
    "2026-11-23T14:05:06Z", "2026-11-23T14:05:07Z", "c", 1, "lost", (GpuReceipt("GPU-1"),)
)


@pytest.mark.parametrize("receipt", [FULL, BARE])
def test_what_is_written_comes_back(receipt):
    line = receipt.as_line()
    assert parse(line) == receipt
    assert "\n" not in line
    assert json.loads(line)["schema"] == 1


def test_what_is_not_known_is_left_out():
    assert json.loads(BARE.as_line()) == {
        "schema": 1,
        "began": "2026-11-23T14:05:06Z",
        "ended": "2026-11-23T14:05:07Z",
        "container": "c",
        "held_s": 1,
        "outcome": "lost",
        "gpus": [{"uuid": "GPU-1"}],
    }


def changed(**fields):
    return json.dumps({**json.loads(FULL.as_line()), **fields})


def changed_gpu(**fields):
    gpu = json.loads(FULL.as_line())["gpus"][0]
    return changed(gpus=[{**gpu, **fields}])


HOSTILE = [
    *("", "null", "7", "[]", "{}", '"text"', "{", '{"schema":1}', "[" * 5000, "\ud800"),
    FULL.as_line()[:-1],
    FULL.as_line() * 2,
    changed(schema=2),
    changed(schema="1"),
    *(changed(held_s=value) for value in (-1, "1", None, True, [], 1e300, {"a": 1})),
    FULL.as_line().replace("3600.25", "NaN"),
    FULL.as_line().replace("3600.25", "Infinity"),
    FULL.as_line().replace("3600.25", "1e999"),
    *(changed(outcome=value) for value in ("ok", "", None, 7)),
    *(
        changed(began=value)
        for value in ("now", "2026-11-23", "", 7, "2026-11-23T14:05:06.789Z\n")
    ),
    *(changed(team=value) for value in ("a\nb", "\x1b[31m", "x" * 201, 7, ["main"], "a\u202eb")),
    *(changed(gpus=value) for value in ([], {}, None, "GPU-1", [7], [{}], [{"uuid": 7}])),
    changed(gpus=[{"uuid": "GPU-1"}] * 65),
    changed(extra=1),
    changed(container=None),
    *(changed_gpu(uuid=value) for value in ("\n", None)),
    *(changed_gpu(index=value) for value in (1.5, "0", -1, True)),
    *(changed_gpu(busy_percent=value) for value in ("71", -0.1, None)),
    *(changed_gpu(xids=value) for value in ("79", [7.5], ["79"], [-1], [1] * 65, {"79": 1})),
    *(changed_gpu(devices=value) for value in ("MIG-1", [7], ["a\n"], ["MIG"] * 65)),
    *(changed_gpu(throttled_s=value) for value in ([], "x", {"cap": "1"}, {"cap": -1}, {"\n": 1})),
    changed_gpu(serial="7"),
    changed(reason="x" * (1 << 17)),
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_a_line_that_is_no_receipt_is_refused(line):
    with pytest.raises(UnsoundError):
        parse(line)


def test_sound_lines_are_read_around_those_that_are_none(tmp_path):
    path = tmp_path / "receipts.log"
    log.append(path, FULL)
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n\n" + b"x" * 200_000)
    log.append(path, BARE)
    with path.open("ab") as file:
        file.writelines(f"{line}\n".encode(errors="replace") for line in HOSTILE if line)
    log.append(path, FULL)
    found = list(log.read(path))
    assert [one for one in found if one] == [FULL, BARE, FULL]
    assert found.count(None) >= len(HOSTILE)
    assert list(log.read(path, {"nobody"})) == []


def test_a_strangers_text_is_cut_to_one_printable_line():
    assert cut("a\nb\x1b[0m\ud800\u202e") == "a?b?[0m??"
    assert len(cut("é" * 500)) == 200
    assert cut("train") == "train"
