# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was found out before a decision: frozen types only."""

import dataclasses

from config import Options
from gpu.inventory import Inventory


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """The nvidia-container-runtime of this machine: its absolute path and version."""

    path: str
    version: str


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the machine itself says.

    Attributes:
        architecture: Debian's name of it: `amd64`, `arm64`.
        toolkit: the NVIDIA container runtime, if there is one.
        rival: who else owns containerd's socket, as a systemd unit or process name; or empty.
        foreign_runc: path of a runc that containerd would find before our wrapper; or empty.
    """

    architecture: str
    toolkit: Toolkit | None = None
    rival: str = ""
    foreign_runc: str = ""


@dataclasses.dataclass(frozen=True)
class Tsa:
    """What the related web units say: the key and version of each host.

    Attributes:
        related: whether there is a relation to a web at all.
        hosts: `ADDRESS:2222` of each web unit whose data is complete.
        public_keys: their host keys, one line each.
        versions: the Concourse versions that they run, without repeats; may be empty.
        request_timeout: the least of the times in seconds after which they give up a call to a
            worker; 0 where one of them does not say it.
        refused: what was refused of their data, for the operator.
    """

    related: bool = False
    hosts: tuple[str, ...] = ()
    public_keys: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    request_timeout: int = 0
    refused: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Database:
    """How to reach PostgreSQL. `ca` is a PEM certificate, empty without TLS."""

    host: str
    port: int
    name: str
    user: str
    password: str = dataclasses.field(repr=False)
    tls: bool = False
    ca: str = ""


@dataclasses.dataclass(frozen=True)
class WebSecrets:
    """What all web units of the application share; kept in Juju secrets. Keys are PEM."""

    admin_password: str = dataclasses.field(repr=False)
    tsa_host_key: str = dataclasses.field(repr=False)
    session_signing_key: str = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Web:
    """What a web unit knows from Juju.

    Attributes:
        database_related: whether the postgresql endpoint is in use.
        database: None until the database's data is complete.
        secrets: None until the leader has made them.
        tsa_public_key: the public half of their TSA host key, one line; empty without secrets.
        worker_keys: the public keys of all related workers, checked.
        refused: what was refused of the workers' data, for the operator.
    """

    database_related: bool = False
    database: Database | None = None
    secrets: WebSecrets | None = None
    tsa_public_key: str = ""
    worker_keys: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RememberedIds:
    """Which card each chosen index meant when gpu-device-ids was set.

    Attributes:
        chosen: the normalised ids of that time.
        uuids: each id and the UUID that it meant.
        indexes: the index that each of these cards had then.
    """

    chosen: tuple[str, ...] = ()
    uuids: tuple[tuple[str, str], ...] = ()
    indexes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Lease:
    """What the store of leases has for one container.

    Attributes:
        devices: UUIDs of GPUs and MIG devices.
        occupied: whether the container uses them still, or has processes left that may; if not,
            the next task takes them from it.
    """

    devices: tuple[str, ...]
    occupied: bool = True


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """A GPU that is out of use until a self-test or the operator brings it back.

    Attributes:
        uuid: the GPU's id.
        reason: why; what stands before `:` is short, such as `Xid 79`.
        check: the id of the check that failed; empty if an operator did it.
        level: the level that must pass for it to return; empty if an operator did it.
        since: when, ISO 8601 in UTC.
        remedy: what the operator does about it.
        by: `self-test` or `operator`.
    """

    uuid: str
    reason: str
    check: str = ""
    level: str = ""
    since: str = ""
    remedy: str = ""
    by: str = "self-test"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the last self-test came to.

    Attributes:
        outcome: `passed`, `failed`, or `incomplete`: something could not be tested.
        partial: whether one GPU alone was tested.
        failure: what the first failed check saw, or why the first that could not be made was not.
        remedy: what the operator does about that.
    """

    outcome: str
    partial: bool = False
    failure: str = ""
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Found:
    """Everything that a decision about this unit rests on.

    Attributes:
        name: this unit as a worker name, such as `worker-0`.
        address: where others reach this unit.
        inventory: None where no GPU was asked for.
        cordoned: UUIDs of GPUs that are no task's for now, each with the reason, such as
            `in use outside CI: pid 4711 (python3)`; what stands before `:` does not change by
            the minute.
        quarantined: GPUs that are out of use until further notice, those that are gone too.
        verdict: None before the first self-test.
        tarball: path of the charm resource `concourse`; empty when not given.
        wheels: path of the charm resource `selftest-wheels`; empty when not given.
        installed: version of the Concourse that is on this machine; empty before the first.
        leaving: this unit is being removed: nothing is started any more.
    """

    options: Options
    name: str
    address: str
    machine: Machine
    inventory: Inventory | None = None
    cordoned: tuple[tuple[str, str], ...] = ()
    quarantined: tuple[Quarantine, ...] = ()
    verdict: Verdict | None = None
    remembered: RememberedIds = RememberedIds()
    tarball: str = ""
    wheels: str = ""
    installed: str = ""
    tsa: Tsa = Tsa()
    web: Web = Web()
    leaving: bool = False

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.name.rpartition("-")[0]

    @property
    def unit(self) -> str:
        """Juju's name of this unit, such as `worker/0`."""
        return "/".join(self.name.rsplit("-", 1))
