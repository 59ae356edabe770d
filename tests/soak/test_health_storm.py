# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Faults, noise, tasks, kills of the watch and refreshes: no grant on a sick GPU, no false alarm.

Half an hour. tests/lab/test_watch.py and test_health_faults.py have the short forms.
"""

import itertools
import os
import pathlib
import random
import shutil
import threading
import time
import zipfile

import pytest

from tests.lab import walk
from tests.lab.site import OPENS, PROBE
from tests.lab.watching import SERVICE, Watch

if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)

SECONDS = 1800
SEED = int(os.environ.get("GPUCI_SEED", random.SystemRandom().randrange(10**6)))
# A task that was granted its GPU just before the fault begins a moment later.
BEGINS = 8.0
TASK = """
echo "from $(cut -d' ' -f1 /proc/uptime)"
sleep $SECONDS_LONG
"""
# Each is harmless on either card.
NOISE = (
    ("xid", "{card}", "13"),
    ("xid", "{card}", "31"),
    ("xid", "{card}", "43"),
    ("xid", "{card}", "45"),
    ("xid", "{card}", "79", "--only", "log"),
    ("set", "{card}", "throttle-reasons=0x4"),
    ("set", "{card}", "throttle-reasons=0x20"),
    ("set", "{card}", "ecc-corrected-volatile=12345"),
    ("busy", "{card}", "97"),
)
FAULTS = (
    (("set", "{card}", "field-230=1"), ("event", "{card}", "0x8000")),
    (("set", "{card}", "field-230=2"), ("xid", "{card}", "79", "--only", "nvml")),
    (("set", "{card}", "field-230=1"),),
    (("set", "{card}", "ecc-uncorrected-volatile=3"),),
)


class Storm:
    """What rages, and what came of it.

    Attributes:
        sick: cards, each with when it was out and when it was mended, in seconds since boot.
        ran: cards that tasks had, each with when the task began.
        harmed: what went wrong with tasks that nobody may disturb.
        false: what was out of use that is well.
    """

    def __init__(self, site, seed, charms):
        self.site, self.watch = site, Watch(site)
        self.chance = random.Random(seed)
        self.over = threading.Event()
        self.sick, self.ran, self.harmed, self.false = [], [], [], []
        self.counts = dict.fromkeys(("fault", "noise", "kill", "refresh"), 0)
        self.charms = itertools.cycle(charms)

    def now(self):
        return float(self.site.sh("cut -d' ' -f1 /proc/uptime"))

    def work(self, number):
        """Run one task after the other."""
        chance = random.Random(SEED + number)
        while not self.over.is_set():
            params = {"GPU_COUNT": "1", "SECONDS_LONG": str(round(chance.uniform(0.5, 6), 1))}
            done = self.site.task(PROBE + TASK, params=params)
            lines = done.stdout.replace("\r", "").splitlines()
            had = [card for card in (0, 1) if f"nvidia{card} {OPENS}" in lines]
            begun = [line for line in lines if line.startswith("from ")]
            if done.returncode or len(had) != 1 or not begun:
                self.harmed.append(done.stdout)
                return
            self.ran.append((had[0], float(begun[0].split()[1])))

    def fault(self):
        card = self.chance.randrange(2)
        commands = [
            tuple(word.format(card=card) for word in one) for one in self.chance.choice(FAULTS)
        ]
        self.watch.faults(card, *commands)
        out = self.now()
        time.sleep(self.chance.uniform(0, 8))
        if self.chance.random() < 0.3:
            self.kill()
        self.watch.fake("reset", str(card))
        self.sick.append((card, out, self.now()))
        self.is_seen()
        uuid = self.watch.uuid(card)
        self.watch.until(lambda: set(self.watch.out()) <= {uuid})
        self.site.sh(
            f"rm -f /var/lib/gpu-ci/quarantine/{uuid}.json /var/lib/gpu-ci/retests/*.json"
        )

    def is_seen(self):
        """Wait for a look at the mended card: a fault that stands on all the while is not new."""
        mended = float(self.site.sh("date +%s.%N"))
        looks = r"gpuci_last_good_poll_timestamp_seconds "
        self.watch.until(lambda: max(self.watch.metric(looks), default=0.0) > mended)

    def noise(self):
        for _ in range(self.chance.randrange(1, 6)):
            card = str(self.chance.randrange(2))
            self.watch.fake(*(word.format(card=card) for word in self.chance.choice(NOISE)))
        time.sleep(self.chance.uniform(0, 6))
        self.false += self.watch.reasons().values()

    def kill(self):
        self.site.sh(f"systemctl kill --kill-who=all --signal=KILL {SERVICE}; true")

    def refresh(self):
        """To a charm with other programs, or back: the watch goes from one version to another."""
        self.site.lab.model.refresh("worker", next(self.charms), force_units=False)
        self.site.lab.settle()

    def rage(self, seconds):
        workers = [threading.Thread(target=self.work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds
        acts = ["fault"] * 3 + ["noise"] * 4 + ["kill"] * 2 + ["refresh"]
        try:
            while time.monotonic() < end and not self.harmed:
                act = self.chance.choice(acts)
                self.counts[act] += 1
                getattr(self, act)()
        finally:
            self.over.set()
            for worker in workers:
                worker.join()

    def grants_on_sick(self):
        return [
            (card, begun)
            for card, begun in self.ran
            for sick, out, mended in self.sick
            if card == sick and out + BEGINS < begun < mended
        ]


def changed(charm, folder):
    """The same charm with one file more among its programs."""
    other = shutil.copy(charm, folder / f"other-{charm.name}")
    file = zipfile.ZipInfo("lib/gpu_agent/health/storm.py")
    file.external_attr = 0o644 << 16
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr(file, "# Of another version.\n")
    return pathlib.Path(other)


def test_a_storm_ends_without_a_grant_on_a_sick_gpu_or_a_false_alarm(site, tmp_path):
    # Both GPUs may be sick within five minutes here, for the same cause.
    site.configure(selftest_on_start="false", quarantine_limit_percent="100")
    watch = Watch(site)
    watch.begin()
    charm = walk.pack()
    storm = Storm(site, SEED, (changed(charm, tmp_path), charm))
    try:
        storm.rage(SECONDS)
    finally:
        site.lab.model.refresh("worker", charm, force_units=False)
        watch.begin()
        site.configure(selftest_on_start="true", reset=("quarantine-limit-percent",))
    told = f"seed {SEED}: {storm.counts}, {len(storm.ran)} tasks"
    print(told)
    assert storm.harmed == [], told
    assert storm.false == [], told
    assert storm.grants_on_sick() == [], told
    assert storm.counts["fault"], told
    assert storm.ran, told
    assert watch.reasons() == {}
