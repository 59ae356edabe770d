# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How web and workers find and trust each other: concourse-tsa and concourse-ci_tsa.

Both interfaces carry the same raw strings in unit databags. The second is that of the public
charm concourse-ci-machine, so either side may be that charm.
"""

import collections.abc
import ipaddress
import re
import typing

import ops

from options.ssh import public_key
from plan.network import Interface, Network
from relations import exchange, juju
from relations.model import Tsa

WEB_ENDPOINTS: typing.Final = ("web-tsa", "tsa")
WORKER_ENDPOINTS: typing.Final = ("worker-tsa", "flight")

_WEB_KEYS: typing.Final = (
    "tsa-host", "tsa-public-key", "concourse-version", "request-timeout", *exchange.OF_WEBS,
)  # fmt: skip
_WORKER_KEYS: typing.Final = ("worker-public-key", *exchange.OF_WORKERS)
_ADDRESS = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]):(?P<port>[0-9]{1,5})"
)
# All of them are one variable of the worker's, which the kernel limits to 128 KiB (execve(2)).
_MOST: typing.Final = 100
# A web's request timeout that can be believed, in seconds: from Concourse's own on.
_TIMEOUTS: typing.Final = range(300, 7201)
_VERSION = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){2}(?:[+-][A-Za-z0-9.+-]{1,40})?")


def read_webs(model: ops.Model) -> Tsa:
    """Return the data of the related web units; unusable data is listed as refused."""
    hosts: dict[str, None] = {}
    owners: dict[str, str] = {}
    beyond = 0
    versions: dict[str, None] = {}
    timeouts: list[int] = []
    refused: list[str] = []
    usable: dict[str, collections.abc.Mapping[str, str]] = {}
    relations = _relations(model, WORKER_ENDPOINTS)
    for unit, data in _units(relations):
        host, key = data.get("tsa-host", ""), data.get("tsa-public-key", "")
        version = data.get("concourse-version", "")
        if not host or not key:
            continue
        if not _is_address(host):
            refused.append(f"tsa-host of {unit}: is not ADDRESS:PORT")
            continue
        if version and not _VERSION.fullmatch(version):
            refused.append(f"concourse-version of {unit}: is not X.Y.Z")
            continue
        try:
            line = public_key(key)
        except ValueError as error:
            refused.append(f"tsa-public-key of {unit}: {error}")
            continue
        if len(hosts) == _MOST and host not in hosts:
            beyond += 1
            continue
        hosts[host] = None
        owners[line] = unit.partition("/")[0]
        versions |= dict.fromkeys([version] if version else [])
        usable[unit] = data
        timeouts.append(_request_timeout(unit, data.get("request-timeout", ""), refused))
    if beyond:
        refused.append(f"tsa-host of {beyond} more units: a worker takes {_MOST}")
    said = Tsa(
        related=bool(relations),
        hosts=tuple(hosts),
        public_keys=tuple(owners),
        versions=tuple(versions),
        webs=tuple(sorted(owners.values())) if len(set(owners.values())) > 1 else (),
        request_timeout=min(timeouts, default=0),
        refused=tuple(refused),
    )
    return exchange.add_webs(said, usable, _told_name(model))


def read_worker_keys(model: ops.Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of all related workers, and what was refused of their data."""
    keys: dict[str, None] = {}
    refused: list[str] = []
    for unit, data in _units(_relations(model, WEB_ENDPOINTS)):
        if text := data.get("worker-public-key", ""):
            try:
                keys[public_key(text)] = None
            except ValueError as error:
                refused.append(f"worker-public-key of {unit}: {error}")
        try:
            keys.update(dict.fromkeys(exchange.second_keys(data)))
        except ValueError as error:
            refused.append(f"{exchange.NEXT_KEY} of {unit}: {error}")
    return tuple(keys), tuple(refused)


def _is_address(host: str) -> bool:
    """Whether it is ADDRESS:PORT; one of IPv6 is in brackets."""
    found = _ADDRESS.fullmatch(host)
    if not found or not 0 < int(found["port"]) < 65536:
        return False
    try:
        return not found["ipv6"] or bool(ipaddress.IPv6Address(found["ipv6"]))
    except ValueError:
        return False


def _request_timeout(unit: str, text: str, refused: list[str]) -> int:
    """Return web's request-timeout in seconds, or 0; an invalid one is added to `refused`."""
    seconds = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else 0
    if text and seconds not in _TIMEOUTS:
        refused.append(
            f"request-timeout of {unit}: is not a number from {_TIMEOUTS[0]} to {_TIMEOUTS[-1]}"
        )
    return seconds if seconds in _TIMEOUTS else 0


def network(model: ops.Model, interfaces: tuple[Interface, ...], published: str) -> Network:
    """Where workers and other web units could reach this unit.

    Args:
        model: this unit's.
        interfaces: the machine's.
        published: the address that was published before; or empty.
    """
    return Network(
        interfaces=interfaces,
        own=juju.offer(model, WEB_ENDPOINTS[0], published),
        relations=tuple(
            (relation.id, juju.offer(model, relation, _published(relation.data[model.unit])))
            for relation in _relations(model, WEB_ENDPOINTS)
        ),
    )


def publish_web(
    model: ops.Model,
    addresses: tuple[tuple[int, str], ...],
    port: int,
    public_key: str,
    version: str,
    request_timeout: int,
) -> None:
    """Publish this web unit's address, key, release and request-timeout to workers.

    Args:
        model: this unit's.
        addresses: where the workers of each relation reach it, by relation id; the others are
            told nothing new.
        port: of the TSA.
        public_key: of the TSA.
        version: of Concourse.
        request_timeout: seconds after which web gives up a call to a worker.
    """
    hosts = dict(addresses)
    for relation in _relations(model, WEB_ENDPOINTS):
        if address := hosts.get(relation.id):
            host = f"[{address}]" if ":" in address else address
            values = f"{host}:{port}", public_key, version, str(request_timeout)
            relation.data[model.unit].update(dict(zip(_WEB_KEYS, values, strict=False)))


def withdraw_web(model: ops.Model) -> None:
    """Have no worker take this unit for a web any more."""
    _withdraw(model, WEB_ENDPOINTS, _WEB_KEYS)


def to_workers(model: ops.Model) -> list[ops.Relation]:
    """All relations in which this unit is a web."""
    return _relations(model, WEB_ENDPOINTS)


def to_webs(model: ops.Model) -> list[ops.Relation]:
    """All relations in which this unit is a worker."""
    return _relations(model, WORKER_ENDPOINTS)


def publish_worker(model: ops.Model, public_key: str) -> None:
    """Tell webs the key that this worker shows."""
    for relation in to_webs(model):
        relation.data[model.unit]["worker-public-key"] = public_key


def withdraw_worker(model: ops.Model) -> None:
    """Have no web take this unit's key any more."""
    _withdraw(model, WORKER_ENDPOINTS, _WORKER_KEYS)


def _told_name(model: ops.Model) -> str:
    """Return the published name of this unit's worker; empty before the first publication."""
    return max((one.data[model.unit].get(exchange.NAME, "") for one in to_webs(model)), default="")


def _withdraw(model: ops.Model, endpoints: tuple[str, ...], keys: tuple[str, ...]) -> None:
    for relation in _relations(model, endpoints):
        data = relation.data[model.unit]
        for key in keys:
            if key in data:
                del data[key]


def _published(data: collections.abc.Mapping[str, str]) -> str:
    return data.get("tsa-host", "").rpartition(":")[0].strip("[]")


def _relations(model: ops.Model, endpoints: tuple[str, ...]) -> list[ops.Relation]:
    return [relation for endpoint in endpoints for relation in model.relations[endpoint]]


def _units(
    relations: list[ops.Relation],
) -> collections.abc.Iterator[tuple[str, collections.abc.Mapping[str, str]]]:
    for relation in relations:
        for unit in sorted(relation.units, key=lambda unit: unit.name):
            yield unit.name, relation.data[unit]
