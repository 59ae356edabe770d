# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Attacks chosen at random among honest tasks, for as long as one likes."""

import dataclasses
import random
import re
import threading
import time
from collections.abc import Callable

from tests.attacks.attacker import EVIDENCE, Attacker, Ended, step
from tests.lab.site import PROBE

LEAVE = "</dev/null >/dev/null 2>&1 &"
MINE = "$(ls -d /dev/nvidia[0-9])"
HOLD = f"/bin/mischief hold {EVIDENCE}/held-$N"
# Each leaves or does something once; N is its number, and it asks for so many GPUs.
ATTACKS: tuple[tuple[str, str], ...] = (
    ("1", f"setsid {HOLD} {LEAVE} sleep 0.3"),
    ("2", f"setsid {HOLD} {LEAVE} sleep 0.3; exit 1"),
    ("all", f"{HOLD} & sleep 1; kill -9 -1"),
    ("1", f"/bin/mischief chain {EVIDENCE}/held-$N {LEAVE} sleep 0.5"),
    ("1", f"{HOLD} {LEAVE} /bin/mischief swarm 300; sleep 0.3"),
    ("1", f"/bin/mischief plant 1 {MINE}; sleep 0.3"),
    ("1", f"setsid /bin/mischief give {EVIDENCE}/socket-$N {MINE} {LEAVE} sleep 2"),
    ("0", f"/bin/mischief take $(ls -t {EVIDENCE}/socket-* | head -n 1) {EVIDENCE}/taken-$N"),
    ("0", "/bin/mischief swarm 300; kill -9 -1"),
    ("0", "cp /bin/mischief /tmp/containerd-$N; /tmp/containerd-$N crash containerd"),
    ("1", f"/bin/mischief freeze {LEAVE} {HOLD} {LEAVE} sleep 0.3"),
    ("0", "/bin/mischief trace"),
    ("3", "true"),
    ("-1", "true"),
    ("1", "mknod /tmp/n$N c 195 0; cat /tmp/n$N; mknod /tmp/m$N c 195 1; cat /tmp/m$N; true"),
)
HONEST = f"""{PROBE}
up() {{ cut -d' ' -f1 /proc/uptime; }}
for gpu in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do
  mkdir {EVIDENCE}/lock-$gpu || echo "held twice: $gpu"
done
echo "from $(up)"
sleep $SECONDS_LONG
echo "to $(up)"
for gpu in $(echo $NVIDIA_VISIBLE_DEVICES | tr , ' '); do rmdir {EVIDENCE}/lock-$gpu; done
"""
HONEST_LOOPS, ATTACK_LOOPS = 2, 3
# For one build; an honest task may have to wait for a GPU that an attacker's step uses.
BUILD_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Held:
    """A card that an honest task had alone: from when to when, in seconds since boot."""

    card: int
    begun: float
    ended: float


class Storm:
    """A storm over the lab's worker.

    Args:
        attacker: who starts all its builds, the honest ones too.
        seconds: how long it lasts.
        seed: of its choices.
    """

    def __init__(self, attacker: Attacker, seconds: float, seed: int):
        self._attacker = attacker
        self._end = time.monotonic() + seconds
        self._seed = seed
        self._lock = threading.Lock()
        self._number = 0
        self.held: list[Held] = []
        self.harmed: list[str] = []
        self.attacks = 0

    def run(self) -> None:
        """Have it rage, and wait for its end.

        Raises:
            AssertionError: one of its builds did not end.
        """
        loops = [self._loop(self._be_honest, n) for n in range(HONEST_LOOPS)]
        loops += [self._loop(self._attack, 50 + n) for n in range(ATTACK_LOOPS)]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()

    def _loop(self, act: Callable[[random.Random], None], number: int) -> threading.Thread:
        def rage() -> None:
            chance = random.Random(self._seed * 100 + number)
            while time.monotonic() < self._end:
                try:
                    act(chance)
                except Exception as error:  # noqa: BLE001  A thread's own fault is a fault too.
                    self.harmed.append(repr(error))
                    return

        return threading.Thread(target=rage)

    def _be_honest(self, chance: random.Random) -> None:
        count = chance.choice((1, 1, 2))
        params = {"SECONDS_LONG": str(round(chance.uniform(0.3, 2), 1))}
        done = self._run(step("one-off", HONEST, str(count), params=params))
        if done.status or len(done.cards) != count or "held twice: GPU-" in done.output:
            self.harmed.append(done.output)
            return
        begun, ended = (
            float(re.findall(rf"^{word} (\d+\.\d+)", done.output, re.MULTILINE)[0])
            for word in ("from", "to")
        )
        self.held += [Held(card, begun, ended) for card in done.cards]

    def _attack(self, chance: random.Random) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        gpus, script = chance.choice(ATTACKS)
        build = self._attacker.start(step("one-off", f"N={number}\n{script}", gpus))
        self.attacks += 1
        if chance.random() < 0.05:
            time.sleep(chance.uniform(0, 1.5))
            self._attacker.site.fly.run("abort-build", "-b", build.number)
        build.wait(BUILD_SECONDS)

    def _run(self, task: dict) -> Ended:
        return self._attacker.run(task, seconds=BUILD_SECONDS)

    def intrusions(self) -> list[tuple[str, Held]]:
        """Where an attacker could open a card while an honest task had it alone."""
        text = self._attacker.site.sh(
            f"cd /srv/lab/rootfs{EVIDENCE}; grep -H . held-* taken-* 2>&-; true"
        )
        found = []
        for line in text.splitlines():
            diary, when, card = re.findall(r"^(\S+?):(\d+\.\d+) .*(\d)$", line)[0]
            found += [
                (diary, held)
                for held in self.held
                if held.card == int(card) and held.begun < float(when) < held.ended
            ]
        return found


def assert_no_harm(attacker: Attacker, seconds: float, seed: int) -> Storm:
    """Have a storm rage; no honest task came to harm, and nobody opened what another had."""
    storm = Storm(attacker, seconds, seed)
    storm.run()
    assert storm.harmed == [], f"seed {seed}: {storm.harmed[0]}"
    assert len(storm.held) >= seconds / 15, f"seed {seed}: {len(storm.held)} honest tasks only"
    assert storm.attacks >= seconds / 10, f"seed {seed}: {storm.attacks} attacks only"
    assert storm.intrusions()[:3] == [], f"seed {seed}"
    return storm
