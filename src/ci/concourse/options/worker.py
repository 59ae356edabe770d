# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of the Concourse worker, typed and validated. Pure."""

import dataclasses
import typing

from ci.concourse.options import values
from gpu_agent.runtime.settings import Folder
from options import task_mounts as folders
from options import values as option_values
from options.readers import Raw, Readers, duration, items, number, pattern, text
from options.values import OptionError

NAMES: typing.Final = (
    "tag", "tsa-host", "tsa-public-key", "worker-private-key", "container-dns-servers",
    "team", "task-mounts", "max-containers", "container-mtu", "ca-certificates",
    "drain-timeout",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """What the operator wants of the worker.

    Attributes:
        tags: the operator's own, in order, without repeats.
        tsa_hosts: addresses of the TSA of a Concourse outside Juju; empty: the relation tells.
        tsa_public_key: that TSA's host keys, a line of OpenSSH each.
        private_key: PEM text out of the Juju secret; empty: the charm makes one.
        dns_servers: of CI containers; empty: those of the machine.
        team: whose steps alone the worker takes; empty: those of all teams.
        folders: those of the host that tasks get.
        max_containers: how many it may have at once; 0: as many as Concourse thinks right.
        mtu: of containers' interfaces; 0: that of the machine's way out.
        certificates: CAs that checks, gets and puts trust besides the machine's, PEM; or none.
        drain_timeout: how long builds are waited for before what would end them, in seconds; 0:
            not at all.
    """

    tags: tuple[str, ...] = ()
    tsa_hosts: tuple[str, ...] = ()
    tsa_public_key: str = ""
    private_key: str = dataclasses.field(default="", repr=False)
    dns_servers: tuple[str, ...] = ()
    team: str = ""
    folders: tuple[Folder, ...] = ()
    max_containers: int = 0
    mtu: int = 0
    certificates: str = ""
    drain_timeout: int = 7200


def drain_timeout(raw: Raw) -> int:
    """How long builds are waited for, in seconds, whatever the other options say.

    Raises:
        OptionError: drain-timeout can't be used.
    """
    return duration(raw, "drain-timeout", 168)


def _mtu(raw: Raw) -> int:
    # Less than 1280 IPv6 does not take (RFC 8200, section 5); more than 65535 no interface has.
    mtu = number(raw, "container-mtu", 65535)
    if 0 < mtu < 1280:
        remedy = "is out of range: use 1280 to 65535, or 0 for that of the machine's way out"
        raise OptionError("container-mtu", mtu, remedy)
    return mtu


def _outside_tsa(raw: Raw) -> tuple[tuple[str, ...], str]:
    """Addresses and host key of a TSA outside Juju; both empty where there is none."""
    hosts, key = items(raw, "tsa-host", values.tsa_host), text(raw, "tsa-public-key")
    if bool(hosts) == bool(key):
        return hosts, values.tsa_public_key(key) if key else ""
    given, missing = ("tsa-host", "tsa-public-key") if hosts else ("tsa-public-key", "tsa-host")
    raise OptionError(given, raw[given], f"needs {missing} beside it: set both or none")


READERS: typing.Final[Readers] = {
    "tags": lambda raw: items(raw, "tag", option_values.tag),
    "tsa_hosts": lambda raw: _outside_tsa(raw)[0],
    "tsa_public_key": lambda raw: _outside_tsa(raw)[1],
    "private_key": lambda raw: option_values.private_key(str(raw.get("worker-private-key") or "")),
    "dns_servers": lambda raw: items(raw, "container-dns-servers", option_values.name_server),
    # What a team may be called: 95872ce1a atc/configwarning.go.
    "team": lambda raw: pattern(
        raw, "team", r"(?:\w[\w.-]{0,63})?", "is no team's name: use one such as team-a"
    ),
    "folders": folders.parse,
    # Each has an address of its own, out of 65536 (worker/runtime/cni_network.go).
    "max_containers": lambda raw: number(raw, "max-containers", 65000),
    "mtu": _mtu,
    "certificates": lambda raw: option_values.certificates(text(raw, "ca-certificates")),
    "drain_timeout": drain_timeout,
}
