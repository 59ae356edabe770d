# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Keep an account of each open lease, and write its receipt when it ends.

The GPU health service runs this. If it is killed, the last seconds of open accounts are lost, but
no lease: a receipt is on disk before its account is dropped. The container and the begin identify
a lease, so no receipt is written twice.
"""

import collections.abc
import contextlib
import dataclasses
import datetime
import json
import logging
import pathlib
import typing

from gpu_agent.model.decisions import Decision, Tell
from gpu_agent.model.observations import Holding, Look, Message, Moment, Source
from gpu_agent.reporting.receipts import log
from gpu_agent.reporting.receipts import receipt as form
from gpu_agent.reporting.receipts.account import Account, Sample
from gpu_agent.reporting.receipts.lease_journal import Journal
from gpu_agent.reporting.receipts.receipt import Names, Receipt, cut
from gpu_runtime.lease_table import RUNNER
from machine import files

STATE: typing.Final = pathlib.Path("/var/lib/gpu-ci/health/accounts.json")

SAVED: typing.Final = 15.0
"""Seconds between two saves of the accounts; a new or ended lease is saved within a second."""

_SOON: typing.Final = 1.0
# A container may look unused for a moment, between the calls that start its step.
_BLINK: typing.Final = 10.0
_MOST_PENDING: typing.Final = 1000
_BOOT: typing.Final = pathlib.Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)

_Read = typing.TypeVar("_Read")

Lease = tuple[str, float]
"""A container, and the begin of its lease in seconds since boot."""


class Ledger:
    """All open accounts, and the receipts that are not written yet."""

    def __init__(
        self,
        path: pathlib.Path = log.PATH,
        *,
        state: pathlib.Path = STATE,
        journal: Journal | None = None,
        names: collections.abc.Callable[[str], Names | None] = lambda _: None,
        boot: str = "",
    ) -> None:
        """Begin with the accounts that an earlier process saved.

        Args:
            path: the log of receipts.
            state: the file for open accounts.
            journal: the decision log; None: the log of this machine.
            names: returns the build of a container, without waiting.
            boot: the name of this boot of the machine; empty: the kernel's name for it.
        """
        self._path, self._state, self._names = path, state, names
        self._journal = journal or Journal()
        self._boot = boot or _BOOT.read_text().strip()
        self._accounts: dict[Lease, Account] = {}
        self._over: set[Lease] = set()
        self._last: dict[str, Sample] = {}
        self._pending: list[Receipt] = []
        self._faults: dict[str, str] = {}
        self._earlier: dict[str, object] | None = self._read_state()
        self._saved_at, self._due = float("-inf"), False

    def turn(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Add what was seen and decided to the accounts; write the receipts of ended leases."""
        self._try("the decision log cannot be read", self._journal.follow)
        if self._earlier is not None and moment.holdings is not None:
            self._resume(moment, self._earlier)
            self._earlier = None
        if moment.holdings is not None:
            self._open(moment, moment.holdings)
        self._note(moment, decisions)
        for look in _looks(moment):
            self._look(moment, look)
        for account in self._accounts.values():
            if account.kind in ("", RUNNER):
                account.names = account.names or self._names(account.container)
            if account.waited is None and account.is_first:
                account.waited = self._journal.waited(account.container)
        if moment.holdings is not None:
            self._close(moment, moment.holdings)
        self._try("receipts cannot be written and are kept until they can", self._write)
        if self._earlier is None:
            self._try("open accounts cannot be saved", lambda: self._save(moment))

    @property
    def pending(self) -> int:
        """How many receipts are not written yet."""
        return len(self._pending)

    def _open(self, moment: Moment, holdings: collections.abc.Sequence[Holding]) -> None:
        held = {(holding.container, holding.since) for holding in holdings}
        self._over &= held
        for holding in holdings:
            lease = holding.container, holding.since
            if holding.ours or not holding.devices:
                continue
            if not holding.in_use:
                # If it is used again, such as by a session, a new lease begins.
                self._over |= {lease} - self._accounts.keys()
                continue
            if lease not in self._accounts:
                again = lease in self._over or not 0 < holding.since <= moment.now
                began = moment.now if again else holding.since
                text = _text(moment.wall - (moment.now - began))
                cards = moment.cards_of(holding)
                self._accounts[lease] = Account.opened(holding, cards, began, text)
                self._due = True
            account = self._accounts[lease]
            account.seen, account.unused = moment.now, None
            account.who = cut(holding.who)  # a runner has a job later than its GPUs
            if holding.waited is not None and account.is_first:
                account.waited = holding.waited

    def _note(self, moment: Moment, decisions: collections.abc.Sequence[Decision]) -> None:
        """Note Xids and failures; jobs can forge the kernel log, so it alone writes no Xid."""
        for message in moment.seen:
            if isinstance(message, Message) and message.source is Source.EVENT:
                self._xid(message.uuid, message.xid, message.at)
        for decision in decisions:
            if isinstance(decision, Tell):
                self._xid(decision.uuid, decision.xid, moment.now)
                for account in self._holding(decision.uuid) if decision.hardware else ():
                    account.fail(decision.uuid, f"{decision.fault}: {decision.text}")
                    self._due = True

    def _xid(self, uuid: str, xid: int | None, at: float) -> None:
        for account in self._holding(uuid) if xid is not None else ():
            if at >= account.began:
                account.xid(uuid, typing.cast("int", xid))
                self._due = True

    def _holding(self, uuid: str) -> list[Account]:
        return [account for account in self._accounts.values() if uuid in account.gpus]

    def _look(self, moment: Moment, look: Look) -> None:
        for uuid, figures in look.figures.items():
            before, now = self._last.get(uuid), Sample(look.at, figures)
            if before and now.at <= before.at:
                continue
            for account in self._holding(uuid):
                account.look(uuid, before, now, alone=_is_alone(moment, account, uuid))
            if not figures.failure:
                self._last[uuid] = now

    def _close(self, moment: Moment, holdings: collections.abc.Sequence[Holding]) -> None:
        held = {(holding.container, holding.since): holding for holding in holdings}
        for lease, account in list(self._accounts.items()):
            holding = held.get(lease)
            if holding is not None and holding.in_use:
                continue
            if account.unused is None:
                account.unused = moment.now
            if holding is not None and moment.now - account.unused < _BLINK:
                continue
            why = self._journal.killed(account.container, self._boot, account.began)
            if why:
                account.kill(why)
            account.close(account.unused, self._last)
            ended = _text(moment.wall - (moment.now - account.unused))
            self._receipt(account.receipt(ended, over=True))
            del self._accounts[lease]
            self._over |= {lease} & held.keys()

    def _receipt(self, receipt: Receipt) -> None:
        self._due = True
        self._pending.append(receipt)
        if len(self._pending) > _MOST_PENDING:
            lost = self._pending.pop(0)
            _log.warning("the receipt of %s is lost: the disk does not accept it", lost.container)

    def _write(self) -> None:
        while self._pending:
            log.append(self._path, self._pending[0])
            del self._pending[0]

    def _resume(self, moment: Moment, earlier: collections.abc.Mapping[str, object]) -> None:
        """Continue an earlier process's accounts; leases that ended meanwhile become `lost`."""
        holdings = {(each.container, each.since): each for each in moment.holdings or ()}
        boot = str(earlier.get("boot"))
        same_boot = boot == self._boot
        pending = self._sound(earlier, "pending", lambda line: form.parse(str(line)))
        opened = self._sound(earlier, "open", _opened)
        over = set(self._sound(earlier, "over", _lease))
        receipts = [receipt for receipt, _ in opened]
        self._over = over
        written = self._written([*pending, *receipts])
        for receipt in pending:
            if receipt.key not in written:
                self._receipt(receipt)
        if not same_boot:  # times since boot do not compare across boots
            holdings.clear()
        for receipt, (since, began) in opened:
            holding = holdings.get((receipt.container, since))
            if receipt.key in written:
                self._over |= {(receipt.container, since)}
            elif holding is not None and holding.in_use:
                account = Account.resumed(since, began, moment.now, receipt)
                self._accounts[receipt.container, since] = account
            else:
                self._receipt(self._lost(receipt, boot, began))
                self._over |= {(receipt.container, since)}
        self._over = self._over if same_boot else set()

    def _sound(
        self,
        earlier: collections.abc.Mapping[str, object],
        name: str,
        read: collections.abc.Callable[[object], _Read],
    ) -> list[_Read]:
        """Return the entries of one of its lists, without the damaged ones."""
        found: list[_Read] = []
        try:
            for entry in form.items(earlier.get(name)):
                try:
                    found.append(read(entry))
                except form.UnsoundError as error:
                    _log.warning("%s: an entry of %s is damaged: %s", self._state, name, error)
        except form.UnsoundError as error:
            _log.warning("%s is damaged: %s: %s", self._state, name, error)
        return found

    def _lost(self, receipt: Receipt, boot: str, began: float) -> Receipt:
        """Return the receipt of a lease whose end was not seen; the log may have its cause."""
        why = self._journal.killed(receipt.container, boot, began)
        if not why or receipt.outcome != "lost":
            return receipt
        return dataclasses.replace(receipt, outcome="killed", reason=why)

    def _written(self, receipts: collections.abc.Sequence[Receipt]) -> set[tuple[str, str]]:
        """Return the keys of those leases whose receipts are written already."""
        containers = {receipt.container for receipt in receipts}
        try:
            return {each.key for each in log.read(self._path, containers) if each}
        except OSError as error:
            _log.warning(
                "%s cannot be read, so a lease may have two receipts: %s", self._path, error
            )
            return set()

    def _save(self, moment: Moment) -> None:
        if moment.now - self._saved_at < (_SOON if self._due else SAVED):
            return
        seen = [
            (account, _text(moment.wall - (moment.now - account.seen)))
            for account in self._accounts.values()
        ]
        state = {
            "boot": self._boot,
            "open": [
                {
                    "since": account.since,
                    "began": account.began,
                    "receipt": account.receipt(text, over=False).as_line(),
                }
                for account, text in seen
            ],
            "over": sorted(self._over),
            "pending": [receipt.as_line() for receipt in self._pending],
        }
        files.ensure_directory(self._state.parent, mode=0o700)
        files.ensure_file(self._state, json.dumps(state), mode=0o600)
        self._saved_at, self._due = moment.now, False

    def _read_state(self) -> dict[str, object] | None:
        try:
            text = files.read_text(self._state)
            return None if text is None else form.table(json.loads(text))
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("%s cannot be read, its accounts are lost: %s", self._state, error)
            return None

    def _try(self, what: str, work: collections.abc.Callable[[], None]) -> None:
        """Run `work`; log its failure once, and once more when it works again."""
        try:
            work()
        except OSError as error:
            if self._faults.get(what) != str(error):
                _log.warning("%s: %s", what, error)
            self._faults[what] = str(error)
        else:
            if self._faults.pop(what, None):
                _log.warning("over: %s", what)


def _looks(moment: Moment) -> list[Look]:
    looks = [each for each in moment.seen if isinstance(each, Look)]
    return looks if moment.look is None or moment.look in looks else [moment.look, *looks]


def _is_alone(moment: Moment, account: Account, uuid: str) -> bool:
    """Return whether an account's lease has the whole GPU, and no other lease has a part."""
    return account.has_all(uuid) and all(
        holding.container == account.container or not holding.in_use
        for holding in moment.holders(uuid)
    )


def _opened(entry: object) -> tuple[Receipt, tuple[float, float]]:
    """Parse a saved account: its receipt so far, the begin of its lease, and its own begin."""
    found = form.table(entry)
    times = _time(found, "since"), _time(found, "began")
    return form.parse(str(found.get("receipt"))), times


def _lease(pair: object) -> Lease:
    container, since = form.items(pair) if len(form.items(pair)) == 2 else (None, None)
    if not form.is_text(container) or not form.is_number(since):
        raise form.UnsoundError(f"{pair!r} is not a lease")
    return str(container), float(str(since))


def _time(entry: collections.abc.Mapping[str, object], name: str) -> float:
    if not form.is_number(entry.get(name)):
        raise form.UnsoundError(f"{name} is not a time")
    return float(str(entry[name]))


def _text(wall: float) -> str:
    moment = datetime.datetime.fromtimestamp(wall, datetime.timezone.utc)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{moment.microsecond // 1000:03}Z"


def open_leases(state: pathlib.Path) -> list[Receipt]:
    """Read the usage records, so far, of the leases that go on, as they were last saved.

    Raises:
        OSError: the saved accounts are there and cannot be read.
    """
    text = files.read_text(state)
    found: list[Receipt] = []
    try:
        entries = form.items(form.table(json.loads(text)).get("open")) if text else []
    except (form.UnsoundError, ValueError, RecursionError) as error:
        raise OSError(f"{state} is damaged: {error}") from error
    for entry in entries:
        with contextlib.suppress(form.UnsoundError):
            found.append(_opened(entry)[0])
    return found
