# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The action gpu-explain: collect the records of this machine, and explain a name by them.

A source that cannot be read is named in the results, and the others are used.
"""

import collections.abc
import datetime
import time
import typing

from actions import since as times
from gpu_agent import paths
from gpu_agent.availability import external_use, operator, quarantine
from gpu_agent.availability import lease_report as leases
from gpu_agent.reporting import decisions, explain
from gpu_agent.reporting.receipts import ledger, log
from gpu_agent.runtime import policy as runtime_policy
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused

_Read = typing.TypeVar("_Read")


def run(unit: str, params: collections.abc.Mapping[str, typing.Any]) -> dict[str, str]:
    """Return the results of the action.

    Args:
        unit: Juju's name of this unit.
        params: the parameters, as actions.yaml declares them.

    Raises:
        actions.since.SinceError: `since` is invalid.
    """
    name = str(params["name"]).strip()
    now = datetime.datetime.now(datetime.timezone.utc)
    begin = times.begin(str(params.get("since", times.DEFAULT)), now)
    records = _Collector().records()
    found = explain.find(records, name, explain.seconds(begin))
    if params.get("format") == "json":
        return {"json": explain.as_json(name, records, found)}
    if found.count == 1:
        results = {"report": explain.as_text(records, found.cases[0])}
    elif found.count:
        results = {
            "matches": str(found.count),
            "report": explain.as_list(found),
            "next": f"juju run {unit} gpu-explain name=<one of the containers>",
        }
    else:
        results = _nothing(unit, records, begin)
    broken = [source for source in records.sources if source.error]
    if broken or not found.count:
        results["searched"] = "\n".join(explain.searched(records))
    return results


def _nothing(unit: str, records: explain.Records, begin: str) -> dict[str, str]:
    """Return the results if no record has the name: the refused tasks, and the next step."""
    results = {
        "state": "nothing found",
        "since": begin,
        "next": f"juju run {unit} gpu-explain name=<a container of fly containers> since=30d",
    }
    refused = explain.unnamed_refusals(records, explain.seconds(begin))
    if refused.count:
        results["refused-tasks"] = (
            "The build of a refused task is not recorded. These tasks were refused:\n"
            + explain.as_list(refused)
        )
    return results


class _Collector:
    """Reads the sources, and notes which of them cannot be read."""

    def __init__(self) -> None:
        self._sources: list[explain.Source] = []
        self._now = time.time()

    def records(self) -> explain.Records:
        """Read all sources."""
        entries = self._entries()
        found = self._usage_records() + self._open_leases()
        held, queue = self._store({lease.container for lease in found if lease.ended is None})
        labels, parts = self._labels()
        return explain.Records(
            entries=tuple(entries),
            leases=(*found, *held),
            queue=tuple(queue),
            out=tuple(self._out()),
            labels=labels,
            parts=parts,
            sources=tuple(self._sources),
            now=self._now,
        )

    def _read(
        self, name: str, place: object, read: collections.abc.Callable[[], _Read], otherwise: _Read
    ) -> _Read:
        """Read a source; if that fails, note the error and return `otherwise`."""
        try:
            found = read()
        except (OSError, ValueError, Refused) as error:
            self._sources.append(explain.Source(name, str(place), error=str(error)))
            return otherwise
        if not any(source.name == name for source in self._sources):
            self._sources.append(explain.Source(name, str(place)))
        return found

    def _entries(self) -> list[decisions.Entry]:
        def read() -> list[decisions.Entry]:
            lines = list(decisions.read(paths.LOG))
            found = [entry for entry in lines if entry and entry.time]
            oldest = found[0].time if found else ""
            damaged = len(lines) - len(found)
            self._sources.append(explain.Source("decision log", str(paths.LOG), oldest, damaged))
            return found

        return self._read("decision log", paths.LOG, read, [])

    def _usage_records(self) -> list[explain.Lease]:
        def read() -> list[explain.Lease]:
            found: list[explain.Lease] = []
            oldest, damaged = "", 0
            for receipt in log.read(log.PATH):
                if receipt is None:
                    damaged += 1
                    continue
                oldest = oldest or receipt.ended
                found.append(explain.lease_of(receipt))
            self._sources.append(explain.Source("usage records", str(log.PATH), oldest, damaged))
            return found

        return self._read("usage records", log.PATH, read, [])

    def _open_leases(self) -> list[explain.Lease]:
        def read() -> list[explain.Lease]:
            # The store no longer has a lease that has ended since the records were saved.
            held = leases.holders()
            return [
                explain.lease_of(receipt, over=False)
                for receipt in ledger.open_leases(ledger.STATE)
                if held is None or (receipt.container in held and held[receipt.container].occupied)
            ]

        return self._read("records of open leases", ledger.STATE, read, [])

    def _store(self, known: set[str]) -> tuple[list[explain.Lease], list[explain.Waiting]]:
        """Read the holders of which nothing is `known` yet, and the queue."""

        def read() -> tuple[list[explain.Lease], list[explain.Waiting]]:
            table, host = Store(str(paths.STORE)).read(), Host()
            booted = self._now - host.now()
            held = [
                explain.Lease(
                    name, holder.kind, holder.who, ("", "", "", ""), tuple(holder.gpus),
                    booted + holder.since if holder.since else 0.0, None,
                )
                for name, holder in table.holders.items()
                if name not in known and host.in_use(name, holder)
            ]  # fmt: skip
            living = [waiter for waiter in table.waiters if host.alive(waiter.call)]
            queue = [
                explain.Waiting(
                    waiter.container, waiter.who, waiter.count, tuple(waiter.named),
                    booted + waiter.since, place,
                )
                for place, waiter in enumerate(living, 1)
            ]  # fmt: skip
            return held, queue

        return self._read("leases", paths.STORE, read, ([], []))

    def _labels(self) -> tuple[dict[str, str], dict[str, str]]:
        """Read the names of the devices for people, and the GPU of each MIG device."""

        def read() -> tuple[dict[str, str], dict[str, str]]:
            allowed = runtime_policy.allowed()
            labels: dict[str, str] = {}
            parts: dict[str, str] = {}
            for key, device in leases.by_key(allowed).items() if allowed else ():
                labels[device.gpu] = f"GPU {device.index}"
                if device.id != device.gpu:
                    labels[device.id] = f"GPU {device.index} MIG {key.rpartition('-')[2]}"
                    parts[device.id] = device.gpu
            return labels, parts

        return self._read("GPU policy", paths.POLICY, read, ({}, {}))

    def _out(self) -> list[explain.Out]:
        taken_out = self._read(
            "records of unavailable GPUs", paths.QUARANTINE, quarantine.read, ()
        )
        external = self._read("GPUs in use outside CI", paths.EXTERNAL, external_use.read, {})
        found = [explain.Out(one.uuid, operator.describe(one), one.since) for one in taken_out]
        return found + [explain.Out(gpu, cause.describe(), "") for gpu, cause in external.items()]
