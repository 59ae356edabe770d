# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The account of one open lease: what its GPUs did since it began. Pure.

A look at a GPU stands for the time since the look before it, but for no more than `LONGEST`: what
nobody looked at is neither idle nor busy, it is left out.
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

# Bits of nvml.h, nvmlClocksThrottleReasons. Those that only say "idle" or "as it was set" are left
# out: they are no throttling.
_POWER_CAP: typing.Final = 0x4
_HARDWARE: typing.Final = 0x8
_THERMAL: typing.Final = 0x20 | 0x40
_POWER_BRAKE: typing.Final = 0x80
_MOST_XIDS: typing.Final = 32


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one look found of one GPU, and when it was."""

    at: float
    figures: Figures


def throttles(reasons: int) -> tuple[str, ...]:
    """Causes of a lower clock, of the bits that a driver tells; the hardware's own come apart."""
    named = {"power cap": _POWER_CAP, "thermal": _THERMAL, "power brake": _POWER_BRAKE}
    found = [name for name, bits in named.items() if reasons & bits]
    # The driver sets this bit beside the one that says why, where it knows why.
    known = reasons & (0x40 | _POWER_BRAKE)
    return (*found, "hardware") if reasons & _HARDWARE and not known else tuple(found)


def risen(before: float | None, after: float | None) -> float | None:
    """How much a counter went up; one that fell began anew at 0. None if it is not known."""
    if before is None or after is None:
        return None
    return after - before if after >= before else after


class _Sums:
    """What one GPU did for the lease; begun with what an earlier process knew of it."""

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
        """It was like this for so long."""
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
        """Its counters went from one look's to the next one's; the lease had this share of it."""
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
        """What is known of it by now."""
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
        since: when, as the store says, the container got its GPUs; with the id it names the lease.
        began: when this account begins; later than `since` where the lease was over in between.
        began_text: the same as a receipt has it.
        seen: when the lease was last seen.
        unused: since when the container uses its GPUs no more; None: it uses them.
        waited: seconds that it waited for them; None if that is not known.
        names: whose step it is; None if that is not known.
        kind, who: as its receipt has them.
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
        """A new one.

        Args:
            holding: the lease.
            cards: the GPUs that it has a part of, as in Moment.cards_of.
            began: when it begins.
            text: the same as a receipt has it.
        """
        gpus = tuple(
            GpuReceipt(
                card.uuid, card.index, cut(card.model), _parts(card, holding), watched_s=0.0
            )
            for card in cards
        )
        # What is watched no more, or is not watched yet, is held all the same.
        known = {device for card in cards for device in card.devices}
        others = tuple(GpuReceipt(name) for name in holding.devices if name not in known)
        account = cls((holding.container, holding.since), began, text, (*gpus, *others))
        account.kind = "" if holding.kind == STEP else holding.kind
        account.who = cut(holding.who)
        return account

    @classmethod
    def resumed(cls, since: float, began: float, now: float, earlier: Receipt) -> "Account":
        """One that an earlier process had; what was between the two nobody has looked at.

        Args:
            since: as of the store.
            began: when it began.
            now: from when on it is watched again.
            earlier: what that process knew of it.
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
        """Whether it begins as the container got its GPUs, which may have been waited for."""
        return self.began == self.since

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of its GPUs."""
        return tuple(self._gpus)

    def has_all(self, uuid: str) -> bool:
        """Whether one of its GPUs is its own as a whole, and not some MIG devices of it."""
        return not self._gpus[uuid].devices

    def look(self, uuid: str, before: Sample | None, now: Sample, *, alone: bool) -> None:
        """A look at one of its GPUs.

        Args:
            uuid: which.
            before: the look before; None if there was none.
            now: this one; one that is older than the lease is left aside.
            alone: whether nobody else has a part of that GPU.
        """
        sums = self._gpus[uuid]
        sums.shared = sums.shared or not alone
        start = self._watched_from if before is None else max(self._watched_from, before.at)
        # It may be over by now: that shows only when nothing has used its GPUs for a while.
        end = now.at if self.unused is None else min(now.at, self.unused)
        if end <= start or now.figures.failure:
            return
        sums.hold(now.figures, min(end - start, LONGEST))
        if before is not None:
            sums.count(before.figures, now.figures, (end - start) / (now.at - before.at))

    def xid(self, uuid: str, number: int) -> None:
        """One of its GPUs told of an Xid."""
        xids = self._gpus[uuid].xids
        if number not in xids and len(xids) < _MOST_XIDS:
            xids.append(number)

    def fail(self, uuid: str, why: str) -> None:
        """One of its GPUs failed under it; the first failure tells."""
        sums = self._gpus[uuid]
        sums.failed = sums.failed or cut(why)
        self._failed = self._failed or cut(why)

    def kill(self, why: str) -> None:
        """This worker or its operator ended it."""
        self._killed = self._killed or cut(why)

    def close(self, end: float, last: collections.abc.Mapping[str, Sample]) -> None:
        """The lease is over: what the last look at each GPU found lasted until then."""
        self.seen = end
        for uuid, sums in self._gpus.items():
            sample = last.get(uuid)
            if sample and not sample.figures.failure and self._watched_from < sample.at < end:
                sums.hold(sample.figures, min(end - sample.at, LONGEST))

    def receipt(self, ended: str, *, over: bool) -> Receipt:
        """What is known of it by now.

        Args:
            ended: when it was last seen, as a receipt has it.
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
    """The MIG devices that a lease has of a GPU; empty where it has all of it as one."""
    mine = tuple(device for device in card.devices if device in holding.devices)
    return () if mine == (card.uuid,) else mine
