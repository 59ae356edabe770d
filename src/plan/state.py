# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What was found out before a decision: frozen types only."""

import dataclasses

from gpu.inventory import Inventory
from plan.certificates import Tls
from plan.offers import Elsewhere
from plan.options import Options, Part
from plan.quarantined import Quarantine
from plan.sights import Rotation, Seen, Sight


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """The nvidia-container-runtime of this machine: its absolute path and version."""

    path: str
    version: str


@dataclasses.dataclass(frozen=True)
class Driver:
    """What there is of NVIDIA's driver: in the running kernel, on the disk, as packages.

    Attributes:
        container: this is a system container, whose kernel and modules are its host's.
        kernel: the running kernel's release, such as `6.8.0-60-generic`.
        next_kernel: that of the kernel which the next boot takes; empty if it can't be told.
        modules: which of these two have nvidia.ko on the disk, each with the module's version,
            which is empty if it can't be told.
        loaded: version of the loaded nvidia.ko, such as `580.65.06`; empty if none is.
        library: version of the libnvidia-ml.so.1 on the disk; empty if there is none, or it has
            no version in its name.
        branch: of which branch its packages are, such as `580-server-open`; empty: no packages.
        version: theirs, such as `580.65.06`; empty: no packages.
        ours: this charm installed them.
        bound: LXD has bound the host's libraries in.
        secure_boot: the firmware lets signed modules alone be loaded.
        refused: what modprobe said when it could not load the module in this boot; or empty.
        nvswitch: the GPUs are joined by NVSwitches, which need a fabric manager.
        changing: an upgrade of it has begun and not ended.
    """

    container: bool = False
    kernel: str = ""
    next_kernel: str = ""
    modules: tuple[tuple[str, str], ...] = ()
    loaded: str = ""
    library: str = ""
    branch: str = ""
    version: str = ""
    ours: bool = False
    bound: bool = False
    secure_boot: bool = False
    refused: str = ""
    nvswitch: bool = False
    changing: bool = False

    @property
    def is_anothers(self) -> bool:
        """Whether there is anything of a driver that this charm did not bring."""
        # In a container the loaded module is the host's.
        loaded = self.loaded and not self.container
        packages = self.branch or self.version
        return not self.ours and bool(packages or self.library or self.modules or loaded)


@dataclasses.dataclass(frozen=True)
class Packaged:
    """NVIDIA's container toolkit as a package.

    Attributes:
        version: of nvidia-container-toolkit-base, such as `1.20.0-1`; empty: it is no package, or
            not there.
        ours: this charm installed it.
        previous: the version before, while this one is on trial; or empty.
        bad: versions that this charm went back from, since no container worked with them.
    """

    version: str = ""
    ours: bool = False
    previous: str = ""
    bad: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the machine itself says.

    Attributes:
        architecture: Debian's name of it: `amd64`, `arm64`.
        toolkit: the NVIDIA container runtime, if there is one.
        rival: who else owns containerd's socket, as a systemd unit or process name; or empty.
        foreign_runc: path of a runc that containerd would find before our wrapper; or empty.
        instance: its name on its host, where it is a system container; empty on a machine.
        boot: what tells its kernel from every other (plan.offers.GpuOffer).
    """

    architecture: str
    toolkit: Toolkit | None = None
    rival: str = ""
    foreign_runc: str = ""
    instance: str = ""
    boot: str = ""


@dataclasses.dataclass(frozen=True)
class Interface:
    """One network interface of this machine.

    Attributes:
        kind: the kernel's word for a virtual one, such as `bridge`, `veth` or `vlan`; empty for a
            physical one.
        addresses: its IPv4 and IPv6 addresses, but those that hold on this link alone.
        master: the bridge or bond that it is a port of; or empty.
        lower: the interface that a vlan or macvlan is made on; or empty.
        has_default_route: whether packets to anywhere leave by it.
    """

    name: str
    kind: str = ""
    addresses: tuple[str, ...] = ()
    master: str = ""
    lower: str = ""
    has_default_route: bool = False


@dataclasses.dataclass(frozen=True)
class Offer:
    """What Juju says of the addresses of one endpoint or relation of this unit.

    Attributes:
        ingress: where others reach this unit, the first preferred; a cross-model relation has
            addresses outside this machine, or names, among them.
        bound: the machine's own addresses in the endpoint's space.
        published: the address that others were told before; empty if none.
    """

    ingress: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    published: str = ""


@dataclasses.dataclass(frozen=True)
class Network:
    """Where this unit can be reached: what its machine has, and what Juju offers.

    Attributes:
        interfaces: the machine's.
        own: what Juju offers for the unit itself.
        relations: the same for each relation to workers, by its id.
    """

    interfaces: tuple[Interface, ...] = ()
    own: Offer = Offer()
    relations: tuple[tuple[int, Offer], ...] = ()


@dataclasses.dataclass(frozen=True)
class Tsa:
    """What the related web units say: the key and version of each host.

    Attributes:
        related: whether there is a relation to a web at all.
        hosts: `ADDRESS:2222` of each web unit whose data is complete.
        public_keys: their host keys, one line each, and those that they will show.
        versions: the Concourse versions that they run, without repeats; may be empty.
        webs: the applications that they belong to, where these are different Concourses.
        request_timeout: the least of the times in seconds after which they give up a call to a
            worker; 0 where one of them does not say it.
        taken: fingerprints of the second keys of workers that each of them takes.
        silent: those units that don't tell which they take, as the public charm's.
        sights: how they see this unit's worker, where they tell.
        refused: what was refused of their data, for the operator.
    """

    related: bool = False
    hosts: tuple[str, ...] = ()
    public_keys: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    webs: tuple[str, ...] = ()
    request_timeout: int = 0
    taken: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    sights: tuple[Sight, ...] = ()
    refused: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Database:
    """How to reach PostgreSQL.

    Attributes:
        others: further hosts of its cluster, which listen on the same port.
        ca: PEM certificates of who signed its own; empty without TLS, or where nobody says.
    """

    host: str
    port: int
    name: str
    user: str
    password: str = dataclasses.field(repr=False)
    tls: bool = False
    ca: str = ""
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class WebSecrets:
    """What all web units of the application share; kept in Juju secrets. Keys are PEM.

    Attributes:
        tsa_next_host_key: takes the place of the host key once the workers know it; or empty.
    """

    admin_password: str = dataclasses.field(repr=False)
    tsa_host_key: str = dataclasses.field(repr=False)
    session_signing_key: str = dataclasses.field(repr=False)
    tsa_next_host_key: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class Web:
    """What a web unit knows from Juju.

    Attributes:
        database_related: whether the postgresql endpoint is in use.
        database: None until the database's data is complete.
        database_withheld: that data is in a secret which is not granted to this unit yet.
        database_refused: what of that data can't be used, and why; or empty.
        secrets: None until the leader has made them.
        secrets_lost: they were made, but Juju doesn't give them.
        tsa_public_key: the public half of their TSA host key, one line; empty without secrets.
        tsa_next_public_key: that of the next one; empty where there is none.
        worker_keys: the public keys of all related workers, checked.
        certificates_related: whether an application is to sign web's certificate.
        certificate: None until it has.
        certificate_refused: why it gives none for the last request; empty where it said nothing.
        certificate_revoked: whether it has taken that back.
        refused: what was refused of the workers' data, for the operator.
    """

    database_related: bool = False
    database: Database | None = None
    database_withheld: bool = False
    database_refused: str = ""
    secrets: WebSecrets | None = None
    secrets_lost: bool = False
    tsa_public_key: str = ""
    tsa_next_public_key: str = ""
    worker_keys: tuple[str, ...] = ()
    certificates_related: bool = False
    certificate: Tls | None = None
    certificate_refused: str = ""
    certificate_revoked: bool = False
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
        cgroup: the path of a job's control group; empty for a container, which its name tells.
    """

    devices: tuple[str, ...]
    occupied: bool = True
    cgroup: str = ""


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
class Failure:
    """What could not be done to a part of this unit.

    Attributes:
        text: why, with the next step.
        passes: whether it may be over by itself.
    """

    part: Part
    text: str
    passes: bool = False


@dataclasses.dataclass(frozen=True)
class IdleRelation:
    """A relation that does nothing.

    Attributes:
        endpoint: this unit's.
        application: on its other side.
        beside: the endpoint whose relation to the same application does it all; empty: a unit of
            this deployment-mode has no use for it.
    """

    endpoint: str
    application: str
    beside: str = ""


@dataclasses.dataclass(frozen=True)
class UnitState:
    """Everything that a decision about this unit rests on.

    Attributes:
        unit: Juju's name of this unit, such as `worker/0`.
        worker_name: what Concourse calls this unit's worker, such as `ci-worker-0` in the model
            `ci`; one that has a name already keeps it.
        planned_units: how many units the application has.
        network: where others reach this unit; empty where it serves no web.
        inventory: None where no GPU was asked for.
        idle_gpus: how many GPUs are here though none was asked for.
        nodes: names of the GPUs' device nodes as the look at the machine began; the same.
        driver: what there is of NVIDIA's driver; nothing where no GPU of NVIDIA's was asked for.
        packaged: the same of its container toolkit.
        upgrade: why the last upgrade of the driver was taken back, or what it waits for; or empty.
        rebooted_for: the version of the driver for which this charm last rebooted the machine.
        cordoned: UUIDs of GPUs that are no task's for now, each with the reason, such as
            `in use outside CI: pid 4711 (python3)`; what stands before `:` does not change by
            the minute.
        handed_out: UUIDs of the GPUs that the wrapper here gives to tasks; empty: it gives none.
        quarantined: GPUs that are out of use until further notice, those that are gone too.
        verdict: None before the first self-test.
        tarball: path of the charm resource `concourse`; empty when not given, None where Juju
            does not tell.
        wheels: path of the charm resource `selftest-wheels`; the same.
        installed: version of the Concourse that is on this machine; empty before the first.
        release_waits: why another Concourse than the one that was asked for is used; or empty.
        release_failed: why the Concourse that was asked for was left again; or empty.
        elsewhere: which GPUs other units give to tasks.
        local_database: the database of a web on this machine, used or not, such as `concourse of
            web/0 of model ci`; empty if there is none.
        rotation: keys that wait for their turn.
        seen: how web sees this unit's worker.
        idle_relations: those that do nothing here.
        leaving: this unit is being removed: nothing is started any more.
        repaired: whether something of the wrapper was not as it should be, and now is.
        failures: what could not be done so far.
    """

    options: Options
    unit: str
    worker_name: str
    machine: Machine
    network: Network = Network()
    inventory: Inventory | None = None
    idle_gpus: int = 0
    nodes: tuple[str, ...] = ()
    driver: Driver = Driver()
    packaged: Packaged = Packaged()
    rebooted_for: str = ""
    upgrade: str = ""
    cordoned: tuple[tuple[str, str], ...] = ()
    handed_out: tuple[str, ...] = ()
    quarantined: tuple[Quarantine, ...] = ()
    verdict: Verdict | None = None
    remembered: RememberedIds = RememberedIds()
    tarball: str | None = ""
    wheels: str | None = ""
    installed: str = ""
    release_waits: str = ""
    release_failed: str = ""
    tsa: Tsa = Tsa()
    web: Web = Web()
    planned_units: int = 1
    elsewhere: Elsewhere = Elsewhere()
    local_database: str = ""
    rotation: Rotation = Rotation()
    seen: Seen = Seen()
    idle_relations: tuple[IdleRelation, ...] = ()
    leaving: bool = False
    repaired: bool = False
    failures: tuple[Failure, ...] = ()

    @property
    def application(self) -> str:
        """This unit's application, as the operator's next command names it."""
        return self.unit.partition("/")[0]

    @property
    def frozen(self) -> frozenset[Part]:
        """The parts that stay as they are, for what is wrong with their options or failed."""
        return self.options.frozen | {failure.part for failure in self.failures}
