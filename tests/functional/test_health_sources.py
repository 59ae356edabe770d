# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch sees of GPUs, through a simulated NVML in a real child of its own."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from gpu_agent.gpu.probe import driver_probe as asker
from gpu_agent.health.sources import Sources
from gpu_agent.model.card import Card as Watched
from gpu_agent.model.observations import Hang, Look, Message, Source
from machine import child_process as children
from tests import once
from tests.fakes import Card, build_nvml, fakekmsg, make_tree, write_state

# Far more than any of this takes on an idle machine.
PATIENCE = 60


class Site:
    """A machine with two cards, whose kernel's log is a file, and the watch's sources there."""

    def __init__(self, root: Path):
        self.root, self.state, self.log = root / "root", root / "gpus", root / "root/dev/kmsg"
        self.cards = [Card(), Card(number=1)]
        write_state(self.state, self.cards)
        make_tree(self.root, self.cards)
        fakekmsg.begin(self.log)
        self.sources: Sources | None = None
        self.pids: list[int] = []
        self.seen: list[object] = []

    def open(self, **options) -> Sources:
        watched = [
            Watched(one.uuid, one.number, one.pci, "A100", (one.uuid,)) for one in self.cards
        ]
        self.sources = Sources(watched, self.root, begin=self.begin, **options)
        return self.sources

    def begin(self, cards, root):
        child = asker.start(cards, root)
        self.pids.append(child.pid)
        return child

    def wait(self, wanted):
        """The first thing seen that is wanted; all that is seen is kept."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.sources.take(1)
            self.seen += found
            for one in found:
                if wanted(one):
                    return one
        raise AssertionError(f"seen only: {self.seen}")

    def look(self) -> Look:
        self.sources.poll_now()
        return self.wait(lambda one: isinstance(one, Look))

    def put(self, name: str, text: str):
        (self.state / name).write_text(text + "\n")

    def event(self, line: str):
        with (self.state / "events").open("a") as file:
            file.write(line + "\n")

    def uuid(self, number: int) -> str:
        return self.cards[number].uuid


@pytest.fixture
def site(tmp_path, monkeypatch):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for the simulated libnvidia-ml.so.1")
    site = Site(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(once.made("nvml", build_nvml)))
    monkeypatch.setenv("FAKE_GPU_DIR", str(site.state))
    yield site
    if site.sources:
        site.sources.close()
    ended(site)


def ended(site):
    """All of its children are gone, and reaped."""
    end = time.monotonic() + PATIENCE
    while children.left() and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in site.pids if Path("/proc", str(pid)).exists()]


def is_message(one):
    return isinstance(one, Message)


def test_a_look_has_each_gpus_figures(site):
    site.put("gpus/0/utilisation", "71")
    site.put("gpus/0/memory-used-mib", "4096")
    site.put("gpus/0/processes", "4711 100")
    site.put("gpus/0/graphics-processes", "4712 100")
    site.put("gpus/1/remapped-rows-pending", "1")
    site.put("gpus/1/field-230", "2")
    site.put("gpus/1/power-mw", "N/A")
    site.open()
    found = site.wait(lambda one: isinstance(one, Look))
    assert found.figures.keys() == {site.uuid(0), site.uuid(1)}
    assert not found.missing
    assert not found.gone
    one, two = found.figures[site.uuid(0)], found.figures[site.uuid(1)]
    assert (one.failure, one.busy, one.memory_used_mib, one.memory_total_mib) == (
        *("", 71, 4096, 81920),
    )
    assert (one.power_w, one.power_limit_w, one.temperature, one.sm_clock_mhz) == (
        60,
        400,
        35,
        210,
    )
    assert (one.reasons, one.pids, one.drawing, one.recovery_action) == (1, (4711,), 1, 0)
    assert (one.ecc_corrected, one.ecc_uncorrected, one.remap_pending, one.remap_failed) == (
        *(0, 0, False, False),
    )
    assert (two.remap_pending, two.recovery_action, two.power_w, two.busy) == (True, 2, None, 0)
    assert site.look().figures[site.uuid(0)].energy_j > one.energy_j > 0


def test_an_event_is_told_in_less_than_a_second_and_brings_a_look(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    times = []
    for line, wanted in {
        "1 0x8 79": ("", 79, ""),
        "1 0x8 31 2 0": ("", 31, "GPU instance 2, compute 0"),
        "1 0x2 0": ("ecc", None, "double bit ECC error"),
        "1 0x800 0": ("remap-failed", None, "memory could not be retired"),
        "1 0x2000 0": ("poison", None, "fatal poison error"),
        "1 0x4000 0": ("lost", None, "GPU unavailable"),
    }.items():
        begun = time.monotonic()
        site.event(line)
        told = site.wait(is_message)
        times.append(time.monotonic() - begun)
        assert (told.uuid, told.source) == (site.uuid(1), Source.EVENT)
        assert (told.fault, told.xid, told.text) == wanted
    assert sorted(times)[len(times) // 2] < 1
    assert site.wait(lambda one: isinstance(one, Look)).figures.keys() == {
        *(site.uuid(0), site.uuid(1)),
    }


def test_a_recovery_that_is_over_is_no_message(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    site.event("0 0x8000 0")
    site.put("gpus/1/field-230", "1")
    site.event("1 0x8000 0")
    told = site.wait(is_message)
    assert (told.uuid, told.fault, told.text) == (site.uuid(1), "recovery", "recovery action 1")


def test_types_that_a_gpu_lacks_are_left_out_and_the_rest_is_heard(site):
    site.put("gpus/0/event-types", "0x8")
    site.put("gpus/1/event-types", "N/A")
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    for line in ("0 0x2000 0", "1 0x8 62", "0 0x8 48"):
        site.event(line)
    told = site.wait(is_message)
    assert (told.uuid, told.xid) == (site.uuid(0), 48)


def test_the_kernels_log_is_followed_from_its_end(site):
    fakekmsg.say(site.log, fakekmsg.xid(site.cards[0].pci, 48))
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    fakekmsg.say(site.log, "NVRM:[1]: segfault in x\nNVRM: Xid (PCI:0000:01:00): 79, forged")
    fakekmsg.say(site.log, fakekmsg.xid("0000:09:00.0", 79))
    fakekmsg.say(site.log, fakekmsg.xid(site.cards[1].pci, 79))
    told = site.wait(is_message)
    assert (told.uuid, told.source, told.xid) == (site.uuid(1), Source.KERNEL, 79)
    assert "fallen off the bus" in told.text
    fakekmsg.begin(site.log)
    site.sources.take(0)
    fakekmsg.say(site.log, fakekmsg.xid(site.cards[0].pci, 13))
    assert site.wait(is_message).xid == 13


def test_a_gpu_that_is_lost_is_told_from_one_that_is_missing_and_one_that_is_gone(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    site.put("gpus/1/fault", "nvml-only")
    found = site.look()
    assert found.figures[site.uuid(1)].failure == "GPU is lost"
    site.put("gpus/1/fault", "fallen-off-bus")
    found = site.wait(lambda one: isinstance(one, Look) and one.missing)
    assert (found.missing, found.gone) == ({site.uuid(1)}, frozenset())
    assert found.figures[site.uuid(0)].failure == ""
    make_tree(site.root, [site.cards[0]])
    found = site.look()
    assert (found.missing, found.gone) == (frozenset(), {site.uuid(1)})
    # The other one is heard again, seconds later at most.
    end = time.monotonic() + PATIENCE
    while not any(map(is_message, site.sources.take(1))):
        assert time.monotonic() < end
        site.event("0 0x8 48")
    site.put("gpus/1/fault", "")
    make_tree(site.root, site.cards)
    assert site.look().figures.keys() == {site.uuid(0), site.uuid(1)}


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("driver", "gone", "driver not loaded"),
        ("nvml-init-rc", "18", "version mismatch"),
    ],
)
def test_a_driver_that_is_unloaded_or_replaced_is_no_hang(site, file, text, words):
    site.put(file, text)
    sources = site.open()
    # What is only being loaded is said nothing of.
    while not site.pids or sources._asker._looking:
        assert sources.take(0.2) == []
    found = site.look()
    assert len(found.figures) == 2
    assert all(words in one.failure.lower() for one in found.figures.values())
    site.put("driver", "loaded")
    site.put("nvml-init-rc", "0")
    assert {one.failure for one in site.look().figures.values()} == {""}
    assert len(site.pids) == 1


@pytest.mark.parametrize("quick", [True, False])
def test_a_driver_that_hangs_is_told_and_so_is_that_it_answers_again(site, monkeypatch, quick):
    if quick:
        monkeypatch.setattr(asker, "_DEADLINE", 2)
        monkeypatch.setattr(asker, "_AFTER_A_HANG", 1)
    elif not os.environ.get("GPUCI_SOAK"):
        pytest.skip("GPUCI_SOAK=1 has the real deadlines, which take half a minute")
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    begun = time.monotonic()
    site.put("hang", "")
    hang = site.wait(lambda one: isinstance(one, Hang) and one.misses == 2)
    assert isinstance(hang, Hang)
    assert [one.misses for one in site.seen if isinstance(one, Hang)][-2:] == [1, 2]
    assert quick or time.monotonic() - begun < 30
    (site.state / "hang").unlink()
    found = site.wait(lambda one: isinstance(one, Look))
    assert found.figures.keys() == {site.uuid(0), site.uuid(1)}
    children.left()
    assert not [pid for pid in site.pids[:2] if Path("/proc", str(pid)).exists()]


def test_close_does_not_wait_for_a_driver_that_hangs(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    site.put("hang", "")
    site.sources.poll_now()
    site.sources.take(2)
    begun = time.monotonic()
    site.sources.close()
    assert time.monotonic() - begun < 5


def test_what_it_costs_is_little(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    (pid,) = site.pids
    assert Path("/proc", str(pid), "comm").read_text() == "gpu-ci-health\n"
    rollup = Path("/proc", str(pid), "smaps_rollup").read_text().split()
    assert int(rollup[rollup.index("Pss:") + 1]) < 25 * 1024

    def spent():
        return int(Path("/proc", str(pid), "schedstat").read_text().split()[0]) / 1e9

    before, end = spent(), time.monotonic() + 3
    while time.monotonic() < end:
        site.sources.take(1)
    # Some 0.1 % with two GPUs; a loop that never sleeps takes all of a processor.
    assert spent() - before < 0.3


def test_a_killed_child_is_followed_by_another_and_nothing_else_is_lost(site):
    site.open()
    site.wait(lambda one: isinstance(one, Look))
    os.kill(site.pids[0], signal.SIGKILL)
    site.put("gpus/0/field-230", "1")
    found = site.wait(lambda one: isinstance(one, Look))
    assert found.figures[site.uuid(0)].recovery_action == 1
    site.event("0 0x8 48")
    assert site.wait(is_message).xid == 48
    assert len(site.pids) == 2
    assert not [one for one in site.seen if isinstance(one, Hang)]


def test_other_gpus_are_looked_after_once_they_are_there(site):
    sources = site.open()
    site.wait(lambda one: isinstance(one, Look))
    site.cards.append(Card(number=2))
    site.cards[2].write(site.state)
    make_tree(site.root, site.cards)
    watched = [Watched(one.uuid, one.number, one.pci, "", (one.uuid,)) for one in site.cards]
    sources.changed(watched)
    assert len(site.wait(lambda one: isinstance(one, Look)).figures) == 3
    sources.changed(watched)
    assert len(site.pids) == 2
    sources.changed([])
    assert sources.take(0.2) == []


def test_whoever_is_to_wake_the_watch_ends_its_wait(site):
    sources = site.open()
    site.wait(lambda one: isinstance(one, Look))
    read, write = os.pipe()
    try:
        sources.wake_on(read)
        os.write(write, b"x")
        begun = time.monotonic()
        assert sources.take(PATIENCE) == []
        assert time.monotonic() - begun < PATIENCE / 2
    finally:
        os.close(read)
        os.close(write)
