# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Publishes each unit's GPUs for tasks, so that a card in two units is noticed.

Units of one application publish to their peers, and units of several applications to web, which
forwards it. In a unit's databag `gpus` is `BOOT UUID UUID ...`, with `-` for an unknown boot. Web
forwards such lines with the unit's name before each. The data changes status only.
"""

import collections.abc
import re
import typing

import ops

from plan.gpu_offers import Elsewhere, GpuOffer
from relations import exchange, peers, tsa

_OWN: typing.Final = "gpus"
_PASSED_ON: typing.Final = "gpus-of-others"

# Room for 1000 GPUs; a databag may have 16 MiB (Juju's limit of its database's documents).
_LONGEST: typing.Final = 65_536
_LINE: typing.Final = re.compile(
    r"(?P<unit>[a-z][a-z0-9-]{0,100}/[0-9]{1,9}) (?P<boot>-|[0-9a-f]{32})"
    r"(?P<uuids>(?: [A-Z]{3}-[A-Za-z0-9:./-]{1,80}){1,256})"
)


def read(model: ops.Model) -> Elsewhere:
    """What other units give to tasks, and which of them drain."""
    found: dict[GpuOffer, None] = {}
    refused: dict[str, None] = {}
    for teller, line in _lines(model):
        if match := _LINE.fullmatch(line):
            uuids = tuple(match["uuids"].split())
            found[GpuOffer(match["unit"], uuids, match["boot"].strip("-"))] = None
        else:
            refused[f"gpus of {teller}: no BOOT UUID ..."] = None
    return Elsewhere(tuple(found), tuple(refused), peers.turns(model))


def publish(model: ops.Model, own: GpuOffer | None, elsewhere: Elsewhere) -> None:
    """Tell peers and webs what this unit gives to tasks; a web tells workers what others do.

    Args:
        model: this unit's.
        own: this unit's GPUs; None: unchanged.
        elsewhere: what this unit knows of others.
    """
    for relation in _relations(model):
        data = relation.data[model.unit]
        if own:
            _tell(data, _OWN, _text(own) if own.uuids else "")
        # The public charm's worker would restart, and its builds end, at each change.
        if relation.name in tsa.WEB_ENDPOINTS and exchange.kin(relation):
            known = {unit.name for unit in relation.units}
            others = [one for one in elsewhere.offers if one.unit not in known]
            _tell(data, _PASSED_ON, "\n".join(f"{one.unit} {_text(one)}" for one in others))


def _text(offer: GpuOffer) -> str:
    return " ".join((offer.boot or "-", *offer.uuids))


def _tell(data: collections.abc.MutableMapping[str, str], key: str, value: str) -> None:
    if value:
        data[key] = value
    elif key in data:
        del data[key]


def _lines(model: ops.Model) -> collections.abc.Iterator[tuple[str, str]]:
    """Who says it, and a unit's name with what it gives to tasks."""
    for relation in _relations(model):
        for unit in sorted(relation.units, key=lambda unit: unit.name):
            data = relation.data[unit]
            if own := data.get(_OWN, ""):
                yield unit.name, f"{unit.name} {own}"[:_LONGEST]
            if relation.name in tsa.WORKER_ENDPOINTS:
                for line in data.get(_PASSED_ON, "")[:_LONGEST].splitlines():
                    yield unit.name, line


def _relations(model: ops.Model) -> list[ops.Relation]:
    endpoints = (peers.ENDPOINT, *tsa.WEB_ENDPOINTS, *tsa.WORKER_ENDPOINTS)
    return [relation for endpoint in endpoints for relation in model.relations[endpoint]]
