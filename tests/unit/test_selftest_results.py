# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reports are kept as they were, in number, and a damaged one counts as none."""

import dataclasses
import errno
import io
import json
import os
import re

import pytest

from gpu_selftest import results
from gpu_selftest.check import Check, Level, Outcome, Said
from gpu_selftest.results import Report

ECC = Check("ecc", Level.QUICK, "the memory is well", unit="errors", each_gpu=True)
MADE = (
    ECC.result(Outcome.PASSED, "none", gpu="GPU-a", value=0, threshold="at most 0"),
    ECC.result(Outcome.WARNING, "ä", gpu="GPU-b", value=1.5, remedy="watch it"),
)


def report(run="20261121T170000Z-1a2b", **changes):
    return Report(
        **{
            "run": run, "subject": "abc", "level": Level.BURN_IN, "device": "cuda", "gpu": "",
            "outcome": "passed", "started": "2026-11-21T17:00:00+00:00", "seconds": 7.4,
            "results": MADE, **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((), "passed"),
        ((Outcome.PASSED, Outcome.WARNING, Outcome.SKIPPED), "passed"),
        ((Outcome.PASSED, Outcome.NOT_RUN), "incomplete"),
        ((Outcome.NOT_RUN, Outcome.FAILED, Outcome.PASSED), "failed"),
    ],
)
def test_failure_outweighs_what_could_not_run_which_outweighs_the_rest(outcomes, expected):
    assert results.outcome(ECC.result(outcome, "") for outcome in outcomes) == expected


def test_report_is_read_as_it_was_saved_by_its_run_or_as_the_last(tmp_path):
    first, second = report(), report("20261121T180000Z-0000", gpu="GPU-a", outcome="failed")
    results.save(first, tmp_path)
    results.save(second, tmp_path)
    assert results.read(home=tmp_path) == second
    assert results.read(first.run, tmp_path) == first
    assert results.read("20261121T190000Z-0000", tmp_path) is None
    kept = json.loads((tmp_path / "last.json").read_text())
    assert (kept["version"], kept["level"], kept["outcome"]) == (1, "burn-in", "failed")
    assert kept["results"][1]["outcome"] == "warning"


def test_a_report_of_the_revision_before_is_read(tmp_path):
    kept = results.plain(report(results=(ECC.result(Outcome.NOT_RUN, "a job has it"),)))
    kept["results"][0]["outcome"] = "prevented"
    (tmp_path / "last.json").write_text(json.dumps(kept))
    assert results.read(home=tmp_path).results[0].outcome is Outcome.NOT_RUN


def test_a_report_has_no_cause_where_there_is_none(tmp_path):
    full = ECC.told(Said(Outcome.FAILED, "disk full: 0.3 GB free", cause="disk full"))
    results.save(report(results=(*MADE, full)), tmp_path)
    assert results.read(home=tmp_path).results == (*MADE, full)
    kept = json.loads((tmp_path / "last.json").read_text())["results"]
    assert [result.get("cause") for result in kept] == [None, None, "disk full"]


def test_report_that_proves_no_gpu_is_never_the_last(tmp_path):
    results.save(report(), tmp_path)
    on_cpu = report("20261121T180000Z-0000", device="cpu")
    results.save(on_cpu, tmp_path)
    assert results.read(home=tmp_path) == report()
    assert results.read(on_cpu.run, tmp_path) == on_cpu


def test_the_last_fifty_by_time_are_kept(tmp_path):
    runs = [f"202611{day:02}T{hour:02}0000Z-ffff" for day in (1, 2, 3) for hour in range(20)]
    for run in reversed(runs):
        results.save(report(run), tmp_path)
    # The oldest were saved last, and still went first.
    assert [path.stem for path in sorted((tmp_path / "history").iterdir())] == runs[10:]


def test_pictures_go_with_their_reports(tmp_path):
    kept, old = report(), "20251121T170000Z-0000"
    for run in (kept.run, old):
        for gpu in (0, 11):
            (tmp_path / results.picture(run, gpu).name).write_text("<svg/>")
    (tmp_path / "baseline.json").write_text("{}")
    results.save(kept, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "baseline.json",
        *(f"burn-in-{kept.run}-gpu{gpu}.svg" for gpu in (0, 11)),
        "last.json",
    ]


def test_ids_of_runs_are_of_one_form_sort_by_time_and_say_when():
    run = results.new_run()
    assert re.fullmatch(results.RUN_PATTERN, run)
    assert f"{results.started(run):%Y%m%dT%H%M%SZ}" == run.partition("-")[0]
    assert results.started("20261121T170509Z-1a2b").isoformat() == "2026-11-21T17:05:09+00:00"
    assert len({results.new_run() for _ in range(20)}) > 10


WHOLE = json.dumps(results.plain(report()))
DAMAGED = [
    "", "null", "5", "[]", "{}", WHOLE[:-20], WHOLE.replace('"version": 1', '"version": 2'),
    WHOLE.replace('"burn-in"', '"deep"', 1), WHOLE.replace('"subject"', '"topic"'),
    WHOLE.replace('"warning"', '"odd"'), WHOLE.replace('"unit"', '"units"'),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_or_other_versions_report_counts_as_none(text, tmp_path):
    results.save(report(), tmp_path)
    (tmp_path / "last.json").write_text(text)
    assert results.read(home=tmp_path) is None
    results.save(dataclasses.replace(report(), seconds=1.0), tmp_path)
    assert results.read(home=tmp_path).seconds == 1.0


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO])
def test_report_that_can_not_be_read_is_not_absent(number, tmp_path, monkeypatch):
    results.save(report(), tmp_path)

    def fail(path, *_, **__):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(io, "open", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        results.read(home=tmp_path)


def test_file_that_is_no_text_or_no_file_counts_as_none(tmp_path):
    assert results.read(home=tmp_path / "nowhere") is None
    (tmp_path / "last.json").write_bytes(b"\xff\xfe")
    assert results.read(home=tmp_path) is None
    (tmp_path / "last.json").unlink()
    (tmp_path / "last.json").mkdir()
    assert results.read(home=tmp_path) is None
