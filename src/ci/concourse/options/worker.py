# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options of the Concourse worker, typed and validated. Pure."""

import dataclasses
import typing

from ci.concourse.options import values
from gpu_agent.runtime.settings import Folder
from options import readers, task_mounts
from options import values as option_values
from options.declaration import Group, Option
from options.part import Part
from options.readers import Raw, text
from options.values import OptionError


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """Settings of the worker's containers.

    Attributes:
        dns_servers: addresses of the DNS servers; empty: those of the machine.
        mtu: MTU of the containers' interfaces; 0: that of the default-route interface.
        max_containers: maximum number of containers; 0: Concourse's default.
    """

    dns_servers: tuple[str, ...] = ()
    mtu: int = 0
    max_containers: int = 0


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """What the operator chose for the worker.

    Attributes:
        tsa_hosts: addresses of the TSA of a Concourse outside Juju; empty: the relation has them.
        tsa_public_key: the host keys of that TSA, a line of OpenSSH each.
        private_key: PEM text from the Juju secret; empty: the charm makes a key.
        team: the only team whose steps the worker runs; empty: all teams.
        folders: folders of the host that tasks get.
        certificates: CAs in PEM that checks, gets and puts trust in addition to the machine's.
    """

    tsa_hosts: tuple[str, ...]
    tsa_public_key: str
    private_key: str = dataclasses.field(repr=False)
    team: str
    folders: tuple[Folder, ...]
    settings: WorkerSettings
    certificates: str


def _private_key(raw: Raw) -> str:
    fields = values.fields(raw, "worker-private-key")
    if not fields:
        return ""
    return values.private_key(fields.get("private-key", ""))


def _outside_tsa(raw: Raw) -> tuple[tuple[str, ...], str]:
    """Read addresses and host keys of a TSA outside Juju; both empty if there is none."""
    hosts, keys = readers.items(raw, "tsa-hosts", values.tsa_host), text(raw, "tsa-public-keys")
    if bool(hosts) == bool(keys):
        return hosts, values.tsa_public_keys(keys) if keys else ""
    given, missing = (
        ("tsa-hosts", "tsa-public-keys") if hosts else ("tsa-public-keys", "tsa-hosts")
    )
    raise OptionError(given, raw[given], f"requires {missing}: set both or none")


def _mtu(value: str) -> int:
    # IPv6 needs 1280 at least (RFC 8200, section 5); no interface has more than 65535.
    found = readers.whole(value)
    if found is None or not 1280 <= found <= 65535:
        raise ValueError("is out of range: use 1280 to 65535")
    return found


def _settings(raw: Raw) -> WorkerSettings:
    known = {
        "dns-server": option_values.name_server,
        "mtu": _mtu,
        # Each container has an address of its own, out of 65536 (worker/runtime/cni_network.go).
        "max-containers": readers.in_range(65000),
    }
    found = readers.settings(raw, "worker-settings", known, repeatable=("dns-server",))
    return WorkerSettings(
        dns_servers=tuple(dict.fromkeys(found.get("dns-server", ()))),
        mtu=found.get("mtu", [0])[0],
        max_containers=found.get("max-containers", [0])[0],
    )


OPTIONS: typing.Final = (
    Option(
        "task-mounts",
        default="",
        text=(
            "Folders of the machine that every task on the worker gets, comma-separated, each "
            "SOURCE[:TARGET][:ro|rw], such as `/srv/datasets, /srv/cache/uv:/root/.cache/uv:rw`. "
            "A folder is read-only without `rw`. Without TARGET, it is at SOURCE in the "
            "container. Steps other than tasks do not get these folders."
        ),
        group=Group.EVERYDAY,
        part=Part.WORKER,
        field="folders",
        read=task_mounts.parse,
    ),
    Option(
        "tsa-hosts",
        default="",
        text=(
            "TSA addresses (HOST:PORT) of a Concourse outside Juju, comma-separated. Requires "
            "tsa-public-keys. Empty: a relation provides the address: worker-tsa to a web of "
            "this charm, or flight to a web of the charm concourse-ci-machine."
        ),
        group=Group.OUTSIDE,
        part=Part.WORKER,
        field="tsa_hosts",
        read=lambda raw: _outside_tsa(raw)[0],
    ),
    Option(
        "tsa-public-keys",
        default="",
        text=(
            "Public host keys of the TSA that tsa-hosts names, comma-separated, in any order; "
            "each is the content of a tsa_host_key.pub, one line. The worker trusts all of them."
        ),
        group=Group.OUTSIDE,
        part=Part.WORKER,
        field="tsa_public_key",
        read=lambda raw: _outside_tsa(raw)[1],
    ),
    Option(
        "worker-private-key",
        default=None,
        text=(
            "URI of a Juju secret whose field `private-key` is this worker's RSA key, in PEM and "
            "without a password, for a Concourse that already knows the key. Not set: each unit "
            "makes its own key."
        ),
        group=Group.OUTSIDE,
        part=Part.WORKER,
        field="private_key",
        read=_private_key,
    ),
    Option(
        "worker-settings",
        default="",
        text=(
            "Settings of the worker's containers: a comma-separated list such as "
            "`dns-server=10.0.0.53,dns-server=10.0.0.54,mtu=1400,max-containers=300`. "
            "`dns-server`: IP address of a DNS server; default: those of the machine. `mtu`: MTU "
            "of the containers' interfaces, 1280 to 65535; default: MTU of the default-route "
            "interface. Set it if traffic leaves through a tunnel with a smaller MTU. "
            "`max-containers`: maximum number of containers, 1 to 65000, including those that "
            "Concourse keeps of failed builds; default: Concourse's own, 250."
        ),
        group=Group.CONTAINERS,
        part=Part.WORKER,
        field="settings",
        read=_settings,
    ),
    Option(
        "worker-ca-certificates",
        default="",
        text=(
            "CA certificates in PEM that checks, gets and puts trust in addition to those of the "
            "machine, for example of a private registry. Tasks trust the CA certificates of their "
            "image only."
        ),
        group=Group.CONTAINERS,
        part=Part.WORKER,
        field="certificates",
        read=lambda raw: option_values.certificates(text(raw, "worker-ca-certificates")),
    ),
    Option(
        "only-team",
        default="",
        text=(
            "The only Concourse team whose steps the worker runs. The team must already exist. "
            "Empty: the worker runs the steps of all teams. If the team changes, running builds "
            "have five minutes to end; then the worker leaves web and registers again."
        ),
        group=Group.CONTAINERS,
        part=Part.WORKER,
        field="team",
        read=lambda raw: readers.pattern(
            raw,
            "only-team",
            r"(?:\w[\w.-]{0,63})?",
            "is not the name of a team: use one such as team-a",
        ),
    ),
)
