# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The account of one open lease: the use of its GPUs since it began. Pure.

A poll of a GPU stands for the time since the previous poll, but for `LONGEST` at most. The rest of
the time counts neither as idle nor as busy; it is left out.
"""

import collections.abc
import dataclasses
import typing

from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Holding
from gpu_agent.reporting.receipts.receipt import GpuReceipt, Names, Receipt, cut
from gpu_runtime.lease_table import STEP

LONGEST: typing.Final = 30.0
"""Seconds, two polls."""

# Bits of nvml.h, nvmlClocksThrottleReasons, without "idle" and "as it was set", which are not
# throttling.
_POWER_CAP: typing.Final = 0x4
_HARDWARE: typing.Final = 0x8
_THERMAL: typing.Final = 0x20 | 0x40
_POWER_BRAKE: typing.Final = 0x80
_MOST_XIDS: typing.Final = 32


@dataclasses.dataclass(frozen=True)
class Sample:
    """The figures of one GPU in one poll, and the time of the poll."""

    at: float
    figures: Figures


def throttles(reasons: int) -> tuple[str, ...]:
    """Return the causes of a lower clock by the driver's bits; `hardware`: unknown cause."""
    named = {"power cap": _POWER_CAP, "thermal": _THERMAL, "power brake": _POWER_BRAKE}
    found = [name for name, bits in named.items() if reasons & bits]
    # If the driver knows the cause, it sets this bit and the bit of the cause.
    known = reasons & (0x40 | _POWER_BRAKE)
    return (*found, "hardware") if reasons & _HARDWARE and not known else tuple(found)


def risen(before: float | None, after: float | None) -> float | None:
    """Return the rise of a counter; a counter that fell restarted at 0. None if unknown."""
    if before is None or after is None:
        return None
    return after - before if after >= before else after


class _Sums:
    """The sums of one GPU for the lease; begins with the sums of an earlier process."""

    def __init__(self, earlier: GpuReceipt) -> None:
        self._base, self.devices = earlier, earlier.devices
        self.shared = earlier.watched_s is None
        self.watched = earlier.watched_s or 0.0
        self.busy = (earlier.busy_percent or 0.0) * self.watched
        self.busy_watched = self.watched if earlier.busy_percent is not None else 0.0
        self.used = earlier.used_s
        self.peak, self.total = earlier.memory_peak_mib, earlier.memory_total_mib
        self.energy = earlier.energy_j
        self.throttled = None if earlier.throttled_s is None else dict(earlier.throttled_s)
        self.xids, self.failed = list(earlier.xids), earlier.failed
        self.ecc: list[int | None] = [earlier.ecc_corrected, earlier.ecc_uncorrected]

    def hold(self, figures: Figures, seconds: float) -> None:
        """Add figures that held for so many seconds."""
        self.watched += seconds
        if figures.busy is not None:
            self.busy += figures.busy * seconds
            self.busy_watched += seconds
        if figures.busy is not None or figures.pids is not None:
            on_it = bool(figures.pids) or bool(figures.busy)
            self.used = (self.used or 0.0) + (seconds if on_it else 0.0)
        if figures.memory_used_mib is not None:
            self.peak = max(self.peak or 0, figures.memory_used_mib)
        if figures.memory_total_mib is not None:
            self.total = figures.memory_total_mib
        if figures.reasons is not None:
            self.throttled = self.throttled or {}
            for name in throttles(figures.reasons):
                self.throttled[name] = self.throttled.get(name, 0.0) + seconds

    def count(self, before: Figures, after: Figures, share: float) -> None:
        """Add the rise of the counters between two polls, by the lease's share of that time."""
        drawn = risen(before.energy_j, after.energy_j)
        if drawn is not None:
            self.energy = (self.energy or 0.0) + drawn * share
        pairs = (
            (before.ecc_corrected, after.ecc_corrected),
            (before.ecc_uncorrected, after.ecc_uncorrected),
        )
        for place, (old, new) in enumerate(pairs):
            more = risen(old, new)
            if more is not None:
                self.ecc[place] = (self.ecc[place] or 0) + int(more)

    def receipt(self) -> GpuReceipt:
        """Return the receipt so far."""
        base = self._base
        always = GpuReceipt(
            base.uuid, base.index, base.model, base.devices,
            memory_total_mib=self.total, xids=tuple(self.xids), failed=self.failed,
        )  # fmt: skip
        if self.shared:
            return always
        return dataclasses.replace(
            always,
            watched_s=self.watched,
            used_s=self.used,
            busy_percent=self.busy / self.busy_watched if self.busy_watched else None,
            memory_peak_mib=self.peak,
            energy_j=self.energy,
            throttled_s=None if self.throttled is None else dict(self.throttled),
            ecc_corrected=self.ecc[0],
            ecc_uncorrected=self.ecc[1],
        )


class Account:
    """An open lease. Times are seconds since boot.

    Attributes:
        container: the container's id.
        since: when the container got its GPUs, by the lease store; with the id it names the lease.
        began: when this account begins; later than `since` if the lease had ended in between.
        began_text: the same, in the receipt's format.
        seen: when the lease was last seen.
        unused: since when the container no longer uses its GPUs; None: it uses them.
        waited: seconds that it waited for them; None if unknown.
        names: the build of the step; None if unknown.
        kind, who: the fields of the receipt.
    """

    def __init__(
        self, lease: tuple[str, float], began: float, began_text: str, gpus: tuple[GpuReceipt, ...]
    ) -> None:
        self.container, self.since = lease
        self.began, self.seen = began, began
        self.unused: float | None = None
        self.waited: float | None = None
        self.names: Names | None = None
        self.kind = self.who = ""
        self.began_text = began_text
        self._watched_from = began
        self._gpus = {gpu.uuid: _Sums(gpu) for gpu in gpus}
        self._killed = self._failed = ""

    @classmethod
    def opened(
        cls, holding: Holding, cards: tuple[Card, ...], began: float, text: str
    ) -> "Account":
        """Open a new account.

        Args:
            holding: the lease.
            cards: the GPUs of which it has a part, as in Moment.cards_of.
            began: when the account begins.
            text: the same, in the receipt's format.
        """
        gpus = tuple(
            GpuReceipt(
                card.uuid, card.index, cut(card.model), _parts(card, holding), watched_s=0.0
            )
            for card in cards
        )
        # The lease also holds GPUs that are not watched, or not yet.
        known = {device for card in cards for device in card.devices}
        others = tuple(GpuReceipt(name) for name in holding.devices if name not in known)
        account = cls((holding.container, holding.since), began, text, (*gpus, *others))
        account.kind = "" if holding.kind == STEP else holding.kind
        account.who = cut(holding.who)
        return account

    @classmethod
    def resumed(cls, since: float, began: float, now: float, earlier: Receipt) -> "Account":
        """Continue the account of an earlier process; no poll covers the time in between.

        Args:
            since: when the container got its GPUs, by the lease store.
            began: when the account began.
            now: from when on the lease is watched again.
            earlier: the receipt so far.
        """
        account = cls((earlier.container, since), began, earlier.began, earlier.gpus)
        account._watched_from = account.seen = now
        account.waited = earlier.waited_s
        account.kind, account.who = earlier.kind, earlier.who
        names = Names(earlier.team, earlier.pipeline, earlier.job, earlier.build)
        account.names = names if names != Names() else None
        if earlier.outcome == "gpu failed":
            account._failed = earlier.reason
        if earlier.outcome == "killed":
            account._killed = earlier.reason
        return account

    @property
    def is_first(self) -> bool:
        """Whether it began when the container got its GPUs, so a wait may precede it."""
        return self.began == self.since

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return tuple(self._gpus)

    def has_all(self, uuid: str) -> bool:
        """Return whether it has the whole of a GPU, and not only MIG devices of it."""
        return not self._gpus[uuid].devices

    def look(self, uuid: str, before: Sample | None, now: Sample, *, alone: bool) -> None:
        """Add a poll of one of its GPUs.

        Args:
            uuid: the GPU.
            before: the previous poll; None if there was none.
            now: this poll; a poll older than the lease is ignored.
            alone: whether no other lease has a part of that GPU.
        """
        sums = self._gpus[uuid]
        sums.shared = sums.shared or not alone
        start = self._watched_from if before is None else max(self._watched_from, before.at)
        # The lease may be over already: that shows only after its GPUs were unused for a while.
        end = now.at if self.unused is None else min(now.at, self.unused)
        if end <= start or now.figures.failure:
            return
        sums.hold(now.figures, min(end - start, LONGEST))
        if before is not None:
            sums.count(before.figures, now.figures, (end - start) / (now.at - before.at))

    def xid(self, uuid: str, number: int) -> None:
        """Add an Xid of one of its GPUs."""
        xids = self._gpus[uuid].xids
        if number not in xids and len(xids) < _MOST_XIDS:
            xids.append(number)

    def fail(self, uuid: str, why: str) -> None:
        """Note that one of its GPUs failed; the first failure is the reason."""
        sums = self._gpus[uuid]
        sums.failed = sums.failed or cut(why)
        self._failed = self._failed or cut(why)

    def kill(self, why: str) -> None:
        """Note that this worker or its operator ended it."""
        self._killed = self._killed or cut(why)

    def close(self, end: float, last: collections.abc.Mapping[str, Sample]) -> None:
        """Close the account: the figures of the last poll held until the end."""
        self.seen = end
        for uuid, sums in self._gpus.items():
            sample = last.get(uuid)
            if sample and not sample.figures.failure and self._watched_from < sample.at < end:
                sums.hold(sample.figures, min(end - sample.at, LONGEST))

    def receipt(self, ended: str, *, over: bool) -> Receipt:
        """Return the receipt so far.

        Args:
            ended: when the lease was last seen, in the receipt's format.
            over: whether that was its end.
        """
        names = self.names or Names()
        outcome = "ended" if over else "lost"
        if self._failed or self._killed:
            outcome = "gpu failed" if self._failed else "killed"
        return Receipt(
            began=self.began_text,
            ended=ended,
            container=self.container,
            held_s=max(0.0, self.seen - self.began),
            outcome=outcome,
            gpus=tuple(sums.receipt() for sums in self._gpus.values()),
            reason=self._failed or self._killed,
            waited_s=self.waited,
            team=names.team,
            pipeline=names.pipeline,
            job=names.job,
            build=names.build,
            kind=self.kind,
            who=self.who,
        )


def _parts(card: Card, holding: Holding) -> tuple[str, ...]:
    """Return the MIG devices that a lease has of a GPU; empty if it has the whole GPU."""
    mine = tuple(device for device in card.devices if device in holding.devices)
    return () if mine == (card.uuid,) else mine
