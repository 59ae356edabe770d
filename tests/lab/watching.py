# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch on a worker of the lab does, as anybody sees it who has no look at its code."""

import concurrent.futures
import json
import re
import time
from collections.abc import Callable, Sequence

from tests.lab.site import Site

SERVICE = "gpu-ci-health.service"
FAKEGPU = "/usr/local/lib/fake-gpu/fakegpu"
QUARANTINE = "/var/lib/gpu-ci/quarantine"
# How long anything may take that has no promise of its own, or where the machine is slow.
PATIENCE = 120.0
# Has fakegpu do something, and waits until a GPU's record is there; prints how long that took.
_FAULT = """
up() {{ cut -d' ' -f1 /proc/uptime; }}
from=$(up)
{commands}
n=0
until [ -e {record} ] || [ $n -ge {tries} ]; do sleep 0.05; n=$((n + 1)); done
[ -e {record} ] && echo "$from $(up)"
"""
_METRICS = "timeout 10 busybox wget -q -O - http://127.0.0.1:335/metrics"


class Watch:
    """The watch on worker/0.

    Args:
        site: the lab.
    """

    def __init__(self, site: Site):
        self.site = site

    def fake(self, *arguments: str) -> None:
        """Change the simulated GPUs, without waking the charm."""
        self.site.machine().run([FAKEGPU, *arguments])

    def uuid(self, card: int) -> str:
        """The id of a card."""
        return self.site.sh(f"cat /var/lib/fake-gpu/gpus/{card}/uuid").strip()

    def faults(self, card: int, *commands: Sequence[str], seconds: float = PATIENCE) -> float:
        """Bring faults about. Return how long it took until no lease is granted on a card.

        Raises:
            AssertionError: leases are granted on it still.
        """
        record = f"{QUARANTINE}/{self.uuid(card)}.json"
        lines = "\n".join(f"{FAKEGPU} {' '.join(words)}" for words in commands)
        script = _FAULT.format(commands=lines, record=record, tries=int(seconds * 20))
        done = self.site.machine().run(["/bin/bash", "-c", script], timeout=seconds + 60)
        assert done.stdout, f"GPU {card} is in use still: {self.journal()}"
        begun, ended = map(float, done.stdout.split())
        return ended - begun

    def faults_and_status(
        self, card: int, text: str, *commands: Sequence[str]
    ) -> tuple[float, float]:
        """Bring faults about while Juju's agents run, and wait until status has this.

        Returns:
            Seconds until no lease is granted on a card, and until status says so.

        Raises:
            AssertionError: one of them is not so.
        """
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            done = pool.submit(self.faults, card, *commands)
            assert self.status_says(text), self.site.status()
            told = time.monotonic() - begun
            return done.result(), told

    def out(self) -> dict[str, dict[str, str]]:
        """The quarantine's records, by the GPU's id."""
        listed = self.site.sh(
            f"for f in {QUARANTINE}/*.json; do [ -e $f ] || continue; "
            "basename $f .json; cat $f; done"
        ).splitlines()
        return {
            name: json.loads(text) for name, text in zip(listed[::2], listed[1::2], strict=True)
        }

    def reasons(self) -> dict[str, str]:
        """What the wrapper keeps tasks from GPUs for: quarantine and cordons, by the id."""
        found = {uuid: entry["reason"] for uuid, entry in self.out().items()}
        cordons = self.site.sh("grep -H . /run/gpu-ci/cordons/*.json 2>&-; true").splitlines()
        for line in cordons:
            path, _, text = line.partition(":")
            name = path.rpartition("/")[2].removesuffix(".json")
            found.setdefault(name, json.loads(text)["reason"])
        return found

    def page(self) -> str:
        """Return the metrics as Prometheus reads them; empty if none are served."""
        return self.site.machine().enter("/bin/sh", "-c", _METRICS, check=False).stdout

    def metric(self, pattern: str) -> list[float]:
        """Return the values of all matching series; none if no metrics are served."""
        lines = [line for line in self.page().splitlines() if re.match(pattern, line)]
        return [float(line.rpartition(" ")[2]) for line in lines]

    def journal(self) -> str:
        """What the watch has said lately."""
        return self.site.sh(f"journalctl --boot -u {SERVICE} -n 60 --no-pager; true")

    def status_says(self, text: str) -> bool:
        """Whether worker/0's status has this, or comes to have it without an event of Juju's."""
        # While no agent runs, juju-exec waits; the watch wakes the unit once in 30 s.
        self.site.lab.controller.settle(lambda: text in self.site.status()[1], 2 * PATIENCE)
        return text in self.site.status()[1]

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait for something.

        Raises:
            AssertionError: it does not come about.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{self.reasons()}\n{self.journal()}"
            time.sleep(0.3)

    def restart(self) -> None:
        """Restart the health service without memory, and let it look at all GPUs."""
        self.site.sh(
            f"systemctl stop {SERVICE}; rm -rf /var/lib/gpu-ci/health /var/lib/gpu-ci/retests "
            "/run/gpu-ci/health/untold /run/gpu-ci/health/suspect; "
            f"systemctl reset-failed {SERVICE} 2>&-; "
            f"systemctl start {SERVICE}"
        )
        # Earlier events are ignored.
        self.until(lambda: len(self.metric(r"gpuci_gpu_answers\{.* 1")) == 2)

    def mend(self) -> None:
        """All simulated GPUs are well, nothing is out of use, and the watch knows no history."""
        well = " ".join(f"{name}=" for name in SETTABLE)
        changes = [f"{change} {card}" for card in (0, 1) for change in ("restore", "reset")]
        changes += [f"set {card} {well}" for card in (0, 1)]
        changes += ["unhang", "xid clear"]
        script = "\n".join(["set -e", *(f"{FAKEGPU} {change}" for change in changes)])
        self.site.machine().run(["/bin/sh", "-c", script])
        self.site.sh(f"systemctl stop {SERVICE}; rm -f {QUARANTINE}/*.json")
        self.restart()

    def begin(self) -> None:
        """The same, and charm and Concourse know it."""
        self.mend()
        self.site.lab.model.update_status("worker/0")
        self.site.lab.settle()
        self.site.wait_for_tag("gpu-count=2")


# What tests set of cards.
SETTABLE = (
    *("field-230", "ecc-uncorrected-volatile", "ecc-corrected-volatile", "throttle-reasons"),
    *("remapped-rows-failed", "remapped-rows-pending", "memory-used-mib", "processes"),
)
