# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The command: what it takes, what it refuses in words, how it ends, and that it never hangs."""

import dataclasses
import json
import os
import signal

import pytest

from gpu_selftest import __main__ as command
from gpu_selftest import results, settings
from gpu_selftest.check import Level, Outcome, Request
from gpu_selftest.quick import host_checks
from gpu_selftest.results import Report
from machine import locks
from tests.unit.situations import GPUS

KEPT = settings.Settings("worker/0", gpus=GPUS[:2], runc="/bin/true", runc_remedy="get one")


def report_of(request, *made):
    return Report(
        run=request.run, subject="abc", level=request.level, device=request.device,
        gpu=request.gpu, outcome=results.outcome(made), started="2026-11-21T17:00:00+00:00",
        seconds=1.5, results=made,
    )  # fmt: skip


class Runs:
    """Stands for the checks: what was asked for, what comes of it, what was kept."""

    def __init__(self, folder):
        self.requests, self.concluded, self.outcome = [], [], Outcome.PASSED
        self.place = command.Place(
            settings=folder / "selftest.json",
            lock=folder / "run" / "selftest.lock",
            home=folder / "selftest",
            user=lambda: 0,
            test=self.test,
            conclude=self.conclude,
        )
        settings.write(KEPT, self.place.settings)

    def main(self, *arguments):
        return command.main(arguments, self.place)

    def test(self, kept, request, progress, reached):
        self.requests.append(request)
        progress("Checking the machine")
        return report_of(request, host_checks.DRIVER.result(self.outcome, "seen", remedy="mend"))

    def conclude(self, kept, report):
        self.concluded.append(report)


@pytest.fixture
def runs(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    yield Runs(tmp_path)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("outcome", "status", "word"),
    [
        (Outcome.PASSED, 0, "passed"),
        (Outcome.WARNING, 0, "passed"),
        (Outcome.FAILED, 1, "failed"),
        (Outcome.NOT_RUN, 3, "incomplete"),
    ],
)
def test_verdict_is_kept_shown_and_the_exit_status(runs, capsys, outcome, status, word):
    runs.outcome = outcome
    assert runs.main() == status
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{word}: quick and isolation, 1 check")
    assert shown.err.startswith("Checking the machine\n")
    assert [report.outcome for report in runs.concluded] == [word]


def test_json_is_the_report_and_nothing_else(runs, capsys):
    assert runs.main("--json", "--level", "quick") == 0
    kept = json.dumps(results.plain(runs.concluded[0]))
    assert json.loads(capsys.readouterr().out) == json.loads(kept)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Request("", Level.ISOLATION)),
        (["--level", "quick", "--gpu", "1"], Request("", Level.QUICK, GPUS[1].uuid)),
        (["--gpu", "gpu-0"], Request("", Level.ISOLATION, GPUS[0].uuid)),
        (["--gpu", GPUS[1].uuid], Request("", Level.ISOLATION, GPUS[1].uuid)),
        (
            ["--level", "burn-in", "--duration", "30", "--device", "cpu"],
            Request("", Level.BURN_IN, device="cpu", minutes=30),
        ),
        (["--level", "burn-in"], Request("", Level.BURN_IN, minutes=10)),
    ],
)
def test_request_is_what_was_asked_for(runs, arguments, expected):
    runs.main(*arguments)
    assert dataclasses.replace(runs.requests[0], run="") == expected
    assert results.started(runs.requests[0].run)


def test_id_of_the_run_can_be_given(runs):
    runs.main("--run", "20261121T170000Z-1a2b")
    assert runs.requests[0].run == "20261121T170000Z-1a2b"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--gpu", "7"],
            f"--gpu 7: tasks get no such GPU here. Available: 0 ({GPUS[0].uuid}), 1 ",
        ),
        (["--gpu", "../x"], "--gpu ../x: tasks get no such GPU here"),
        (["--duration", "5"], "--duration is only for --level burn-in, not for isolation"),
        (["--level", "burn-in", "--duration", "0"], "--duration 0: give 1 to 1440 minutes"),
        (["--level", "burn-in", "--duration", "1441"], "--duration 1441: give 1 to 1440 minutes"),
        (["--run", "../../etc/passwd"], "--run ../../etc/passwd: not the id of a run"),
    ],
)
def test_wrong_use_is_refused_in_words_and_tests_nothing(runs, capsys, arguments, words):
    assert runs.main(*arguments) == 2
    assert f"gpu-selftest: {words}" in capsys.readouterr().err
    assert (runs.requests, runs.concluded) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--level", "deep"], "'deep' (choose from"),
        (["--duration", "ten"], "argument --duration: invalid int value: 'ten'"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--lev", "quick"], "unrecognized arguments: --lev quick"),
        (["quick"], "unrecognized arguments: quick"),
    ],
)
def test_what_argparse_refuses_ends_with_the_same_status(runs, capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        runs.main(*arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_without_root_settings_or_gpus_it_says_what_to_do(runs, capsys):
    runs.place = dataclasses.replace(runs.place, user=lambda: 1000)
    assert runs.main() == 2
    assert "the self-test needs root: sudo /opt/gpu-ci/bin/gpu-selftest" in capsys.readouterr().err
    runs.place = dataclasses.replace(runs.place, user=lambda: 0)
    settings.write(dataclasses.replace(KEPT, gpus=()), runs.place.settings)
    assert runs.main("--gpu", "0") == 2
    assert "--gpu 0: tasks get no such GPU here. Available: none" in capsys.readouterr().err
    runs.place.settings.unlink()
    assert runs.main() == 2
    assert "juju config <application> enable-gpu=true" in capsys.readouterr().err


def test_second_one_is_told_who_tests_and_since_when(runs, capsys):
    runs.place.lock.parent.mkdir()
    with locks.hold(runs.place.lock, "pid 4711, level burn-in, since 17:00:03 UTC"):
        assert runs.main() == 2
    assert capsys.readouterr().err == (
        "gpu-selftest: another self-test is running (pid 4711, level burn-in, since 17:00:03 UTC):"
        " wait for it\n"
    )
    assert runs.main() == 0
    # Whoever may read it could lock it, and no GPU would be tested any more.
    assert runs.place.lock.stat().st_mode & 0o777 == 0o600
    kept = runs.place.lock.read_text()
    assert kept.startswith(f"pid {os.getpid()}, level isolation, since ")


def test_without_the_runc_of_tasks_there_is_no_verdict(runs, capsys):
    without = dataclasses.replace(KEPT, runc="/opt/ci/current/runc")
    settings.write(without, runs.place.settings)
    assert runs.main() == command.WRONG_USE
    assert capsys.readouterr().err == (
        "gpu-selftest: /opt/ci/current/runc, which the self-test needs, is missing: get one\n"
    )
    assert (runs.requests, runs.concluded) == ([], [])
