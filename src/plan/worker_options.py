# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of the Concourse worker, typed and validated. Pure."""

import dataclasses
import typing

from plan import option_values
from plan.option_readers import Raw, Readers, items, text
from plan.option_values import OptionError

NAMES: typing.Final = (
    "tag", "tsa-host", "tsa-public-key", "worker-private-key", "container-dns-servers",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """What the operator wants of the worker.

    Attributes:
        tags: the operator's own, in order, without repeats.
        tsa_hosts: addresses of the TSA of a Concourse outside Juju; empty: the relation tells.
        tsa_public_key: that TSA's host key, a line of OpenSSH.
        private_key: PEM text out of the Juju secret; empty: the charm makes one.
        dns_servers: of CI containers; empty: those of the machine.
    """

    tags: tuple[str, ...] = ()
    tsa_hosts: tuple[str, ...] = ()
    tsa_public_key: str = ""
    private_key: str = dataclasses.field(default="", repr=False)
    dns_servers: tuple[str, ...] = ()


def _outside_tsa(raw: Raw) -> tuple[tuple[str, ...], str]:
    """Addresses and host key of a TSA outside Juju; both empty where there is none."""
    hosts, key = items(raw, "tsa-host", option_values.tsa_host), text(raw, "tsa-public-key")
    if bool(hosts) == bool(key):
        return hosts, option_values.tsa_public_key(key) if key else ""
    given, missing = ("tsa-host", "tsa-public-key") if hosts else ("tsa-public-key", "tsa-host")
    raise OptionError(given, raw[given], f"needs {missing} beside it: set both or none")


READERS: typing.Final[Readers] = {
    "tags": lambda raw: items(raw, "tag", option_values.tag),
    "tsa_hosts": lambda raw: _outside_tsa(raw)[0],
    "tsa_public_key": lambda raw: _outside_tsa(raw)[1],
    "private_key": lambda raw: option_values.private_key(str(raw.get("worker-private-key") or "")),
    "dns_servers": lambda raw: items(raw, "container-dns-servers", option_values.name_server),
}
