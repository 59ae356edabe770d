# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What receipts add up to, and the action that shows it."""

import csv
import dataclasses
import datetime
import json

import pytest
from ops import testing

from actions import dispatch as actions
from actions import gpu_report as action
from actions.since import SinceError
from gpu_agent.health import settings as health
from gpu_agent.reporting.receipts import log, report
from gpu_agent.reporting.receipts.receipt import GpuReceipt, Receipt
from tests.unit.situations import state

NOW = datetime.datetime(2026, 11, 23, 15, 0, tzinfo=datetime.timezone.utc)
A, B = GpuReceipt("GPU-a", 0, "A100-SXM4-80GB"), GpuReceipt("GPU-b", 1, "A100-SXM4-80GB")


def gpu(which=A, **figures):
    return dataclasses.replace(which, **figures)


def lease(*gpus, ended="2026-11-23T14:00:00.000Z", held=3600, container="c", names=None, **fields):
    names = dict(zip(("team", "pipeline", "job", "build"), names or (), strict=False))
    outcome = "gpu failed" if any(one.failed for one in gpus) else "ended"
    fields = {"outcome": outcome, **fields, **names}
    return Receipt("2026-11-23T13:00:00.000Z", ended, container, held, gpus=gpus, **fields)


WHOLE = {"watched_s": 3600, "used_s": 1800, "busy_percent": 40, "energy_j": 3.6e6}
LEASES = [
    lease(gpu(**WHOLE), waited_s=360, names=("main", "train", "unit", "1")),
    lease(
        gpu(A, watched_s=1800, used_s=1800, busy_percent=100, energy_j=1.8e6),
        gpu(B, watched_s=3600, used_s=0, busy_percent=0, failed="off the bus: Xid 79"),
        waited_s=720, names=("main", "train", "big", "7"),
    ),
    lease(gpu(B, devices=("MIG-1", "MIG-2")), container="d", names=("vision", "", "", "1")),
    lease(gpu(B), container="e", outcome="lost"),
]  # fmt: skip


def rows(by, receipts=LEASES):
    return {row.name: row for row in report.make(receipts, by).rows}


def test_leases_of_others_than_pipelines_have_rows_of_their_own():
    others = [
        lease(gpu(), kind="container", who='docker container "train"'),
        lease(gpu(), kind="job", who="gpu-run of alice: python train.py", container="x.scope"),
    ]
    assert set(rows("job", others)) == {"(podman and Docker)", "(gpu-run)"}
    assert set(rows("container", others)) == {one.who for one in others}
    assert report.make(others, "team").nameless == 0


def test_by_gpu_each_gpu_of_a_lease_has_its_own_figures():
    found = rows("gpu")
    first = found["GPU 0 A100-SXM4-80GB GPU-a"]
    second = found["GPU 1 A100-SXM4-80GB GPU-b"]
    assert (first.leases, first.gpu_hours_held, first.gpu_hours_used) == (2, 2, 1)
    assert (first.gpu_hours_unseen, first.busy_percent, first.energy_kwh) == (0.5, 60, 1.5)
    assert (first.waited_hours, first.failed_by_hardware) == (0.2, 0)
    # A device that is a part of a GPU counts as one, and nobody knows what it did.
    assert (second.leases, second.gpu_hours_held, second.gpu_hours_used) == (3, 4, 0)
    assert (second.gpu_hours_unseen, second.failed_by_hardware) == (3, 1)
    assert second.energy_kwh is None


def test_the_total_counts_each_lease_once_whatever_the_rows_are_of():
    totals = {by: report.make(LEASES, by).total for by in report.BY}
    assert len(set(totals.values())) == 1
    total = totals["gpu"]
    assert (total.leases, total.gpu_hours_held, total.waited_hours) == (4, 6, 0.3)
    assert (total.failed_by_hardware, total.energy_kwh) == (1, 1.5)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("team", ["main", "vision", report.NO_NAMES]),
        ("pipeline", ["main/train", f"vision/{report.ONE_OFF}", report.NO_NAMES]),
        (
            "job",
            ["main/train/big", f"vision/{report.ONE_OFF}", report.NO_NAMES, "main/train/unit"],
        ),
        ("container", ["c", "d", "e"]),
    ],
)
def test_rows_are_ordered_by_what_they_held(by, names):
    assert [row.name for row in report.make(LEASES, by).rows] == names


def test_the_table_has_its_columns_under_each_other():
    lines = report.as_text(report.make(LEASES, "team")).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["team", "leases"]
    assert lines[1].split() == [
        *("main", "2", "3.00", "1.00", "0.50", "36", "%", "1.50", "0.30", "1")
    ]
    assert lines[3].startswith("(names not known)")
    assert "-" in lines[3].split()
    assert lines[-1].startswith("total ")


def test_csv_is_read_back_by_a_program_and_counts_nothing_in_a_spreadsheet():
    evil = lease(gpu(), names=("=cmd|' /C calc'!A0", 'a"b,c', "j", "1"))
    text = report.as_csv(report.make([*LEASES, evil], "pipeline"))
    table = list(csv.DictReader(text.splitlines()))
    assert table[0]["pipeline"] == "main/train"
    assert table[0]["gpu_hours_held"] == "3.0"
    assert table[1]["busy_percent"] == ""
    assert any(row["pipeline"] == "'=cmd|' /C calc'!A0/a\"b,c" for row in table)


def test_very_many_rows_fit_into_one_result_of_an_action():
    many = [
        lease(gpu(), names=(f"t{number}" + "ü" * 190, "p" * 200, "j" * 200))
        for number in range(5000)
    ]
    made = report.make(many, "job")
    assert made.rows[-1].name == report.OTHERS
    assert sum(row.leases for row in made.rows) == made.total.leases == 5000
    for text in (report.as_text(made), report.as_csv(made), json.dumps(dataclasses.asdict(made))):
        assert len(text.encode()) < 120_000
    short = report.make(
        (lease(gpu(), container=f"c{number}") for number in range(5000)), "container"
    )
    assert len(short.rows) == 301
    assert len(json.dumps(dataclasses.asdict(short))) < 120_000


@pytest.fixture
def receipts(rooms, tmp_path, monkeypatch):
    """Writes receipts where the action looks for them."""
    path = tmp_path / "log/receipts.log"
    monkeypatch.setattr(log, "PATH", path)
    monkeypatch.setattr(health, "PATH", tmp_path / "health.json")

    def write(*leases):
        for one in leases:
            log.append(path, one)
        return path

    return write


def run(**params):
    return action.run(params, NOW)


@pytest.mark.parametrize(
    ("since", "begin"),
    [
        ("7d", "2026-11-16T15:00:00Z"),
        ("24h", "2026-11-22T15:00:00Z"),
        ("1h", "2026-11-23T14:00:00Z"),
        ("2026-11-20", "2026-11-20T00:00:00Z"),
        ("2026-11-20T10:30", "2026-11-20T10:30:00Z"),
        ("2026-11-20T10:30:05Z", "2026-11-20T10:30:05Z"),
    ],
)
def test_since_when_leases_count(receipts, since, begin):
    receipts(lease(gpu(), ended=begin.replace("Z", ".000Z").replace("2026", "2025")), *LEASES)
    shown = run(since=since)
    assert shown["since"] == begin
    receipts(lease(gpu(), ended=begin.replace("Z", ".500Z"), container="just"))
    assert "just" in run(since=since, by="container")["report"]


@pytest.mark.parametrize(
    "since",
    [
        *("", "7", "d", "-7d", "7w", "0d", "7 d", "7d\n", "1e3d", "99999999d", "99999d"),
        *("2026-13-01", "2026-02-30", "20261123", "yesterday", "2026-11-23T25:00", "2026-11-24"),
        *("\u0667d", "../../etc", "x" * 5000),
    ],
)
def test_a_time_that_is_none_is_refused_with_what_is_allowed(receipts, since):
    receipts(*LEASES)
    with pytest.raises(SinceError) as caught:
        run(since=since)
    assert repr(since[:100]) in str(caught.value)
    assert "since" in str(caught.value)
    assert "allowed" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("params", [{"by": "build"}, {"format": "xml"}, {"by": "GPU"}, {"by": 7}])
def test_a_wrong_choice_is_refused_with_what_is_allowed(receipts, params):
    with pytest.raises(action.ReportError, match=r"is unknown; allowed: (gpu|text), ") as caught:
        run(**params)
    assert str(caught.value).startswith(next(iter(params)))


def test_without_leases_it_says_so_in_words(receipts):
    shown = run()
    assert shown["report"] == "No lease has ended since 2026-11-16T15:00:00Z"
    assert "has no usage record" in shown["notes"]
    assert run(format="csv")["csv"].count("\n") == 1
    assert json.loads(run(format="json")["json"])["rows"] == []
    receipts(lease(gpu(), ended="2025-01-01T00:00:00.000Z"))
    assert run() == {"since": shown["since"], "report": shown["report"]}


def test_it_says_how_many_leases_have_no_names_and_why(receipts, tmp_path):
    receipts(*LEASES)
    assert "1 of 4 leases have no names: names are known only on" in run(by="team")["notes"]
    for program, why in (((), "names are known only on"), (("-m", "names"), "the CI system did")):
        found = health.Settings("worker/0", "/dispatch", job_names=program)
        (tmp_path / "health.json").write_text(health.as_text(found))
        assert f"1 of 4 leases have no names: {why}" in run(by="job")["notes"]
    assert "names" not in run(by="gpu")["notes"]
    assert any(
        "no names" in note for note in json.loads(run(by="job", format="json")["json"])["notes"]
    )


def test_lines_that_are_no_receipts_are_counted(receipts):
    path = receipts(LEASES[0])
    with path.open("a") as file:
        file.write('{"schema":1}\ntorn')
    receipts(LEASES[0])
    shown = run()
    assert f"2 lines of {path} are damaged" in shown["notes"]
    assert shown["report"].splitlines()[-1].split()[1] == "2"


def test_receipts_that_cannot_be_read_fail_in_words(receipts):
    path = receipts(LEASES[0])
    path.unlink()
    path.mkdir()
    with pytest.raises(action.ReportError, match=f"{path} cannot be read"):
        run()


def act(context, **params):
    context.run(context.on.action("gpu-report", params=params), state("worker"))
    return dict(context.action_results)


def test_the_action_at_the_charms_door(context, receipts):
    now = datetime.datetime.now(datetime.timezone.utc)
    recent = f"{now - datetime.timedelta(hours=1):%Y-%m-%dT%H:%M:%S}.000Z"
    receipts(*(dataclasses.replace(one, ended=recent) for one in LEASES))
    shown = act(context)
    assert {*shown} == {"since", "report", "notes"}
    assert "GPU 0 A100-SXM4-80GB GPU-a" in shown["report"]
    (only,) = act(context, format="csv", by="pipeline", since="2h").items()
    assert only[0] == "csv"
    (only,) = act(context, format="json").items()
    assert json.loads(only[1])["total"]["leases"] == 4


@pytest.mark.parametrize("params", [{"since": "soon"}, {"by": "build"}, {"format": "yaml"}])
def test_the_action_fails_in_words(context, receipts, params):
    with pytest.raises(testing.ActionFailed, match="allowed: ") as caught:
        act(context, **params)
    ((name, value),) = params.items()
    assert f"{name} '{value}'" in str(caught.value)


def test_the_action_changes_nothing_but_what_it_shows():
    assert "gpu-report" not in actions.CHANGING
