# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch asks to have tested, and what the charm has tried: small files that may break."""

import json

import pytest

from gpu_agent.availability import retests
from gpu_selftest.check import Level

RUN = "20261121T170000Z-1a2b"
XID = "Xid 13 twice in 24 h, from different jobs"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(retests, "PATH", tmp_path / "gpu-ci/retests")
    return retests.PATH


def test_levels_are_those_of_the_self_test():
    assert tuple(level.value for level in Level) == retests.LEVELS


def test_without_a_folder_nothing_is_asked(folder):
    assert retests.read() == retests.tries("GPU-0") == ()
    assert not retests.forget("GPU-0")
    assert not retests.remove()
    assert not folder.parent.exists()


def test_what_is_asked_is_read_until_it_is_forgotten(folder):
    assert retests.ask("GPU-0", "quick", XID)
    assert not retests.ask("GPU-0", "quick", "another word for it")
    (asked,) = retests.read()
    assert (asked.uuid, asked.level, asked.why) == ("GPU-0", "quick", XID)
    assert retests.forget("GPU-0")
    assert retests.read() == ()
    assert not retests.forget("GPU-0")


def test_root_alone_reads_it(folder):
    retests.ask("GPU-0", "quick", XID)
    retests.tried("GPU-0", RUN)
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert {path.stat().st_mode & 0o7777 for path in folder.iterdir()} == {0o600}


def test_a_higher_level_takes_the_place_of_a_lower_and_never_the_reverse(folder):
    retests.ask("GPU-0", "isolation", "first")
    path = folder / "GPU-0.json"
    path.write_text(path.read_text().replace(retests.read()[0].since, "2026-01-02T03:04:05Z"))
    assert not retests.ask("GPU-0", "quick", "lower")
    assert retests.ask("GPU-0", "burn-in", "higher")
    (asked,) = retests.read()
    assert (asked.level, asked.why, asked.since) == ("burn-in", "higher", "2026-01-02T03:04:05Z")


def test_what_was_asked_for_meanwhile_outlives_the_end_of_a_lower_test(folder):
    retests.ask("GPU-0", "quick", XID)
    retests.ask("GPU-0", "compute", "uncorrected ECC")
    assert not retests.forget("GPU-0", "quick")
    assert retests.forget("GPU-0", "compute")


def test_the_oldest_comes_first(folder):
    for uuid, since in (("GPU-0", "2026-01-03"), ("GPU-1", "2026-01-02"), ("PCI-0:1", "2026-02")):
        retests.ask(uuid, "quick", XID)
        path = folder / f"{uuid}.json"
        path.write_text(json.dumps({"level": "quick", "why": XID, "since": since}))
    assert [asked.uuid for asked in retests.read()] == ["GPU-1", "GPU-0", "PCI-0:1"]


def test_lines_of_a_driver_stay_one_printable_line(folder):
    retests.ask("GPU-0", "quick", "a\nb\x1b[31m" + "c" * 9999)
    (asked,) = retests.read()
    assert asked.why.startswith("a b [31mccc")
    assert asked.why.isprintable()
    assert len(asked.why) == 500


@pytest.mark.parametrize("uuid", ["../../etc/passwd", "", ".", "..", "-x", "GPU/1", "GPU-1\n"])
def test_what_is_no_id_becomes_no_file(folder, uuid):
    for call in (
        lambda name: retests.ask(name, "quick", XID),
        lambda name: retests.tried(name, RUN),
        retests.tries,
        retests.forget,
    ):
        with pytest.raises(ValueError, match="is not the id of a GPU"):
            call(uuid)
    assert not folder.exists()


def test_what_is_no_level_is_refused(folder):
    with pytest.raises(ValueError, match="not a level"):
        retests.ask("GPU-0", "fast", XID)


GOOD = {"level": "quick", "why": XID, "since": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '"x"', "\xff", "7"]
    + [
        json.dumps({**GOOD, **change})
        for change in (
            {"level": "fast"}, {"level": ""}, {"level": None}, {"why": 7}, {"why": "a\nb"},
            {"since": None}, {"more": "x"}, {"uuid": "GPU-1"},
        )
    ],
)  # fmt: skip
def test_a_damaged_file_is_dropped_and_said(folder, caplog, text):
    retests.ask("GPU-1", "quick", XID)
    (folder / "GPU-0.json").write_text(text, encoding="latin-1")
    assert [asked.uuid for asked in retests.read()] == ["GPU-1"]
    assert not (folder / "GPU-0.json").exists()
    assert "GPU-0.json is damaged" in caplog.text


def test_tries_outlive_what_was_asked_and_are_the_last_twenty(folder):
    retests.ask("GPU-0", "quick", XID)
    for number in range(25):
        retests.tried("GPU-0", f"20261121T1700{number:02}Z-1a2b")
    retests.forget("GPU-0")
    assert retests.tries("GPU-0") == tuple(
        f"20261121T1700{number:02}Z-1a2b" for number in range(5, 25)
    )
    assert retests.tries("GPU-1") == ()
    assert retests.remove()
    assert retests.tries("GPU-0") == ()


@pytest.mark.parametrize("text", ["{", "{}", "null", '["a", 7]', '["../x"]', '"abc"', "\xff"])
def test_damaged_tries_are_dropped_and_said(folder, caplog, text):
    retests.tried("GPU-0", RUN)
    (folder / "GPU-0.tried").write_text(text, encoding="latin-1")
    assert retests.tries("GPU-0") == ()
    retests.tried("GPU-0", RUN)
    assert retests.tries("GPU-0") == (RUN,)
    assert "GPU-0.tried is damaged" in caplog.text
