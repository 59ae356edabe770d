# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the charm's door is tested with: units in their situations, and rooms that only note."""

import dataclasses
import pathlib
import time
from types import MappingProxyType

import yaml
from ops import testing

import charm
from ci import systems
from ci.concourse import effects as concourse_effects
from ci.concourse import looks as concourse_looks
from ci.concourse import outside as concourse_outside
from ci.concourse import rsa_keys as keys
from ci.concourse.concourse import Concourse
from ci.concourse.plan import plan as concourse_plan
from ci.concourse.plan import status as concourse_status
from ci.concourse.plan.model import ConcoursePlan, ConcourseState, Rivals, WebPlan, WorkerPlan
from ci.concourse.web.local_postgresql import LocalDatabase
from ci.concourse.web.tls import Signing
from ci.concourse.worker.keys import WorkerKeys
from effects import Effects
from gpu_agent.model.host import Driver, Machine, Packaged, Toolkit
from gpu_agent.model.inventory import Gpu, Inventory, MigDevice, State
from gpu_agent.model.keep import Keep
from gpu_agent.model.verdict import Verdict
from gpu_agent.runtime.settings import Folder, GpuPlan
from gpu_runtime.unavailable import Unavailable
from lifecycle.records import Records
from observe import Looks
from options import table
from outside import Outside
from plan import gpu_status, plan, status
from plan.ci_plan import CiPlan
from plan.draining import Rest
from plan.gpus import Choice
from plan.model import HostPlan, Plan
from plan.network import Interface, Network, Offer
from plan.state import Quarantine, RememberedIds, UnitState
from plan.unit_id import UnitId
from relations.model import Database, Tsa, Web, WebSecrets
from relations.worker_view import Sight
from tests import once
from tests.unit import drain_rig

BY_NAME = {option.name: option for option in systems.TABLE}
DEFAULTS = table.defaults(systems.TABLE)
ROOT = pathlib.Path(__file__).parents[2]
# Of the tree whose charm is under test. Given that tree as its root, ops.testing would write
# metadata.yaml there as long as a test runs.
DECLARED = {
    part: yaml.safe_load((pathlib.Path(charm.__file__).parents[1] / f"{name}.yaml").read_text())
    for part, name in (("meta", "metadata"), ("config", "config"), ("actions", "actions"))
}
MODEL = testing.Model("ci", uuid="uuid-of-ci")
WORKER_KEY = keys.public_key_line(once.rsa_key(1))
HOST_PEM = once.rsa_key(2)
HOST_KEY = keys.public_key_line(HOST_PEM)
GPUS = tuple(
    Gpu(
        index=index,
        uuid=f"GPU-0000000{index}-1111-2222-3333-444444444444",
        vendor="nvidia",
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        pci_address=f"0000:0{index + 1}:00.0",
        minor=index,
    )
    for index in range(2)
)
EMPTY = pathlib.Path("/dev/null")
RUNTIME = "/usr/bin/nvidia-container-runtime"
TOOLKIT = Toolkit(RUNTIME, "1.20.0")
NOTHING = RememberedIds()
MACHINE = Machine("amd64", TOOLKIT)
READY = Inventory(State.READY, GPUS, driver="580.95.05", cuda="13.0", vendor="nvidia")
DATABASE = Database("10.0.0.9", 5432, "concourse", "u", "p")
SECRETS = WebSecrets("password", "host key", "signing key")
TSA = Tsa(related=True, hosts=("10.0.0.5:2222",), public_keys=(HOST_KEY,), versions=("8.3.0",))
WEB = Web(
    database_related=True,
    database=DATABASE,
    secrets=SECRETS,
    tsa_public_key=HOST_KEY,
    worker_keys=(WORKER_KEY,),
)
ETH0 = Interface("eth0", addresses=("10.0.0.7",), has_default_route=True)
NETWORK = Network((ETH0,), Offer(("10.0.0.7",), ("10.0.0.7",)))
OUTSIDE = {"tsa-hosts": "ci.example.com:2222", "tsa-public-keys": WORKER_KEY}


def gpu(number, index=None, **values):
    """Card `number`, at NVML's index `index`."""
    given = {
        "index": number if index is None else index,
        "uuid": f"GPU-{number}",
        "vendor": "nvidia",
        "model": "NVIDIA A100-SXM4-80GB",
        "memory_mib": 81920,
        "pci_address": f"0000:0{number + 1}:00.0",
        "minor": number,
    }
    return Gpu(**{**given, **values})


def sliced(number, *profiles):
    """Card `number` with MIG mode on, and a MIG device of each of these profiles."""
    mig = tuple(MigDevice(f"MIG-{number}-{n}", profile) for n, profile in enumerate(profiles))
    return gpu(number, mig_enabled=True, mig=mig)


def situation(*gpus, toolkit=TOOLKIT, remembered=NOTHING, options=(), **inventory):
    """What was found on a worker with these GPUs, with these changes."""
    given = {"state": State.READY, "driver": "580.95.05", "cuda": "13.0", "vendor": "nvidia"}
    given |= inventory
    return UnitState(
        options=parse_options({"enable-gpu": True, **dict(options)}),
        unit="worker/0",
        machine=Machine("amd64", toolkit),
        ci=ConcourseState("ci-worker-0", network=NETWORK),
        inventory=Inventory(gpus=gpus, **given),
        remembered=remembered,
    )


def parse(**options):
    """The options with these changes, `_` for `-` in their names."""
    return parse_options({name.replace("_", "-"): value for name, value in options.items()})


def parse_options(raw, wrong=()):
    """Juju's config with these values, as the charm reads it."""
    room, unknown = systems.chosen(raw)
    return table.parse(raw, room.options, (*wrong, *unknown))


def refused(**options):
    """What the operator reads of one that can't be used."""
    (wrong,) = parse(**options).wrong
    assert wrong.text.isprintable(), "more than a line would tear up juju status"
    assert len(wrong.text) < 300
    assert wrong.text.startswith(wrong.option)
    return wrong.text


def unit(mode="worker", /, options=(), machine=(), **values):
    """A unit that has all it needs, with these changes."""
    raw = {"deployment-mode": mode, **dict(options)}
    own = ConcourseState(
        worker_name="ci-ci-gpu-3",
        network=NETWORK,
        tsa=Tsa() if mode == "web" else TSA,
        web=Web() if mode == "worker" else WEB,
    )
    good = UnitState(
        options=parse_options(raw),
        unit="ci-gpu/3",
        machine=dataclasses.replace(MACHINE, **dict(machine)),
        inventory=READY if raw.get("enable-gpu") else None,
        ci=own,
    )
    return changed(good, **values)


def changed(state, **values):
    """The state with these changes, of the unit or of its Concourse."""
    own = {one.name for one in dataclasses.fields(ConcourseState)}
    its = {name: value for name, value in values.items() if name in own}
    rest = {name: value for name, value in values.items() if name not in own}
    return dataclasses.replace(state, ci=dataclasses.replace(state.ci, **its), **rest)


@dataclasses.dataclass(frozen=True)
class Running:
    """The state of all services of a unit of Concourse, as status is told of them."""

    web: bool = False
    worker: bool = False
    connected: bool = False
    copies: bool = False
    lost_database: str = ""
    certificate: tuple[str, bool] = ("", False)
    aside: tuple[str, ...] = ()
    folder: str = ""
    failing: tuple[tuple[str, int], ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    watch: bool = True
    suspect: str = ""
    rest: Rest | None = None
    metrics_taken: int = 0


def status_lines(found, made, running):
    """All lines of the status of a unit whose services run so."""
    told = dataclasses.asdict(running) | {"rest": running.rest}
    agents = {one.name: told.pop(one.name) for one in dataclasses.fields(status.Running)}
    added = concourse_status.make(
        found, made, concourse_status.Running(**told), rests=running.rest is not None
    )
    return status.lines(found, made, status.Running(**agents), added)


NO_CHOICE = Choice()


def plan_of(gpu=None, worker=None, web=None, choice=NO_CHOICE, problems=()):
    """A plan with these parts and nothing else."""
    own = ConcoursePlan(None, worker, web)
    return Plan(problems, gpu, CiPlan(own, takes_jobs=worker is not None), choice)


class Planner:
    """Concourse as the plan sees it."""

    longest_wait = staticmethod(concourse_plan.longest_wait)
    plan = staticmethod(concourse_plan.make)


def make_plan(state):
    """What a unit of Concourse should be."""
    return plan.make(state, Planner)


def gpu_unit(options=(), **values):
    return unit(options={"enable-gpu": True, **dict(options)}, **values)


@dataclasses.dataclass(frozen=True)
class Release:
    version: str = "8.3.0"
    waits: str = ""
    failed: str = ""


class Failing:
    """An object of which one method fails."""

    def __init__(self, known, method, error):
        self._known, self._method, self._error = known, method, error

    def __getattr__(self, name):
        return self._fail if name == self._method else getattr(self._known, name)

    def _fail(self, *_, **__):
        raise self._error


class Releases:
    """The releases of the rooms: what is wanted is there at once, and well."""

    def __init__(self, rooms):
        self._rooms = rooms

    def ensure(self, wanted, say, is_time):
        self._rooms.calls.append("release.ensure")
        if self._rooms.release_error:
            raise self._rooms.release_error
        return Release()

    def installed(self):
        return self._rooms.installed

    def before(self):
        return None

    def note_if_well(self):
        pass

    def judge(self, plan, say):
        return ""


@dataclasses.dataclass
class Rooms:
    """What the charm asked of its rooms, and what they answer.

    What outlasts a hook is in real files in `machine_folder`, and agents have their folders there.
    """

    machine_folder: pathlib.Path
    calls: list[str] = dataclasses.field(default_factory=list)
    inventory: Inventory = Inventory(
        State.READY, GPUS, driver="580.95.05", cuda="13.0", vendor="nvidia"
    )
    driver: Driver = Driver()
    packaged: Packaged = Packaged()
    host: HostPlan | Keep = Keep.AS_IS
    boot: str = "first boot"
    machine: Machine = MACHINE
    rivals: Rivals = Rivals()
    # What ops.testing has Juju offer where a test says nothing.
    interfaces: tuple[Interface, ...] = (Interface("eth0", addresses=("192.0.2.0",)),)
    connected: bool = True
    external: tuple[tuple[str, Unavailable], ...] = ()
    kept_out: tuple[tuple[str, Unavailable], ...] | None = None
    closed: tuple[tuple[str, Unavailable], ...] = ()
    quarantined: tuple[Quarantine, ...] = ()
    verdict: Verdict | None = None
    after_test: dict[str, object] = dataclasses.field(default_factory=dict)
    worker: WorkerPlan | None = None
    web: WebPlan | None = None
    lost_database: str = ""
    gpu: GpuPlan | None = None
    new_password: str = "secret-password"
    watched: str | None = None
    watch_runs: bool = True
    suspect: str = ""
    folders: tuple[Folder, ...] | Keep | None = None
    refused_folder: str = ""
    idle_gpus: int = 0
    failing: tuple[tuple[str, int], ...] = ()
    authorized: tuple[str, ...] | None = None
    worker_name: str = ""
    worker_tags: tuple[str, ...] = ()
    handed_out: tuple[str, ...] = ()
    upgrade: str = ""
    asked: dict[str, str] = dataclasses.field(default_factory=dict)
    sights: dict[str, Sight] | None = dataclasses.field(default_factory=dict)
    wrong_seconds: float = 0.0
    pid: int = 0
    steps: tuple[str, ...] = ()
    installed: object = None
    release_error: Exception | None = None
    builds: dict[str, str] = dataclasses.field(default_factory=dict)
    now: float = 1000.0
    today: float = dataclasses.field(default_factory=time.time)
    woken: list[tuple[int, float]] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.charm = type("Charm", (charm.GpuCiWorkerCharm,), {"outside": self.outside()})

    def context(self, application="unit"):
        """Unit 0 of this application, whose agent lives on the machine."""
        root = pathlib.Path(self.unit(f"{application}/0").agent) / "charm"
        root.mkdir(parents=True, exist_ok=True)
        return testing.Context(
            self.charm, **DECLARED, app_name=application, unit_id=0, charm_root=root
        )

    def unit(self, name, model="ci"):
        agent = self.machine_folder / f"unit-{name.replace('/', '-')}"
        return UnitId(name, model, f"uuid-of-{model}", str(agent))

    def own(self, name, model="ci"):
        """Have the machine owned by a unit whose agent lives. Return the record's text."""
        unit, claim = self.unit(name, model), self.records.claim
        pathlib.Path(unit.agent).mkdir(exist_ok=True)
        claim.path.unlink(missing_ok=True)
        claim.take(unit)
        return claim.path.read_text()

    @property
    def records(self):
        """What outlasts a hook."""
        folder = self.machine_folder / "gpu-ci"
        return Records.within(folder, drain_rig.Clock(self), drain_rig.Waker(self))

    @property
    def leaving(self):
        """Whether the unit's removal has begun."""
        return self.records.unit.is_leaving()

    @leaving.setter
    def leaving(self, _):
        self.records.unit.set_leaving()

    def outside(self):
        """The machine as a hook meets it, which only notes what it is asked for."""
        self.concourse = concourse_outside.Outside(
            self.concourse_looks(),
            self.concourse_effects(),
            Releases(self),
            WorkerKeys(self.machine_folder / "keys", lambda: once.rsa_key(1)),
            LocalDatabase(self.machine_folder / "database"),
            Signing(self.machine_folder / "keys", lambda: once.rsa_key(3)),
            worker=drain_rig.Worker(self),
        )
        concourse, *others = systems.ALL
        made = dataclasses.replace(
            concourse, make=lambda *given: Concourse(*given, self.concourse)
        )
        return Outside(self.looks(), self.effects(), self.records, (made, *others))

    def hand_in(self, remove=MappingProxyType({}), **others):
        """Have others in the place of some looks, effects, removals by their part, and records.

        `releases`, `keys`, `database`, `signing`, `backups` and `worker` are Concourse's.
        """

        def changed(known):
            its = {name: call for name, call in others.items() if hasattr(known, name)}
            if hasattr(known, "remove"):
                gone = {part: call for part, call in remove.items() if part in known.remove}
                its["remove"] = {**known.remove, **gone}
            return dataclasses.replace(known, **its)

        def all_of(outside):
            looks, effects = changed(outside.looks), changed(outside.effects)
            return dataclasses.replace(outside, looks=looks, effects=effects)

        outside = all_of(self.charm.outside)
        records = changed(outside.records)
        self.charm.outside = dataclasses.replace(outside, records=records)
        self.concourse = changed(all_of(self.concourse))

    def keep(self, part, name):
        def call(wanted, *_):
            changed = getattr(self, part) != wanted
            setattr(self, part, wanted)
            self.calls.append(name)
            return changed

        return call

    def looks(self):
        """What a hook sees of the machine."""
        return Looks(
            machine=lambda: self.machine,
            architecture=lambda: "amd64",
            nodes=lambda: (),
            gpus=lambda _: self.inventory,
            idle_gpus=lambda: self.idle_gpus,
            verdict=lambda: self.verdict,
            quarantined=lambda: self.quarantined,
            handed_out=lambda: self.handed_out,
            external=lambda _: self.external,
            driver=lambda _: self.driver,
            toolkit=lambda: self.packaged,
            upgrade=lambda: self.upgrade,
            watches=lambda: self.watch_runs,
            suspect=lambda: self.suspect,
            metrics_taken=lambda: 0,
        )

    def effects(self):
        """What a hook changes the machine by, which only notes what it is asked for."""
        return Effects(
            equip=self.equip,
            install_runtime=self.keep("gpu", "runtime.apply"),
            mount=self.give,
            record_unavailable=self.keep("kept_out", "external_use.ensure"),
            close=lambda gpus: setattr(self, "closed", gpus),
            register_engines=lambda _: bool(self.calls.append("engines.ensure")),
            remedy=lambda *_: (),
            test=self.test,
            watch=self.watch,
            serve_gpu_run=lambda *_: False,
            remove={
                **{part: self.note(f"{part}.remove") for part in Effects().remove},
                "health watch": self.unwatch,
            },
        )

    def concourse_looks(self):
        """What a hook sees of Concourse."""
        return concourse_looks.Looks(
            worker_name=lambda: self.worker_name,
            worker_runs=lambda: self.worker is not None,
            is_connected=lambda: self.connected,
            has_tag=lambda tag: tag in self.worker_tags,
            copies_volumes=lambda: False,
            trusted=self.trusted,
            rivals=lambda: self.rivals,
            web_is_set_up=lambda: False,
            web_runs=lambda: self.web is not None,
            authorized=lambda: frozenset(self.authorized or ()),
            peer_address=lambda: self.web.address if self.web else "",
            metrics_port=lambda: self.web and self.web.wanted.metrics_port,
            url=lambda: self.web and self.web.external_url,
            lost_database=lambda: self.lost_database,
            interfaces=lambda: self.interfaces,
            folder=lambda: self.refused_folder,
            failing=lambda: self.failing,
            taken=lambda: (),
            sights=self.look,
            wrong_for=self.wrong_for,
        )

    def concourse_effects(self):
        """What a hook changes Concourse by, which only notes what it is asked for."""
        return concourse_effects.Effects(
            new_secrets=lambda: WebSecrets(self.new_password, HOST_PEM, HOST_PEM),
            authorize=self.authorize,
            prune=self.prune,
            install_launcher=self.note("launcher.ensure"),
            forward=self.note("network.ensure"),
            apply_web=self.keep("web", "web.apply"),
            apply_worker=self.keep("worker", "worker.apply"),
            retire_worker=self.note("worker.retire"),
            set_database_aside=self.note("database.set_aside"),
            remove={
                part: self.note(f"{part}.remove") for part in concourse_effects.Effects().remove
            },
        )

    def give(self, wanted, *_):
        if wanted is not Keep.AS_IS:
            self.keep("folders", "folders.ensure")(wanted)

    def equip(self, wanted, drainer, progress):
        self.host = wanted
        return False

    def trusted(self):
        return self.worker.tsa_public_keys if self.worker else ()

    def look(self, wanted):
        """How web sees the workers: as they should be, but where `sights` says something else."""
        self.asked = dict(wanted)
        if self.sights is None:
            return None
        good = {name: Sight("running", tags) for name, tags in wanted.items()}
        return {name: self.sights.get(name, one) for name, one in good.items()}

    def prune(self, names):
        """Web forgets all of them but those that `sights` says run."""
        self.pruned = frozenset(names)
        return frozenset(name for name in names if name in (self.sights or ()))

    def wrong_for(self, *, wrong):
        return self.wrong_seconds if wrong else 0.0

    def authorize(self, keys):
        self.authorized = tuple(keys)

    def test(self, seen, wanted, progress):
        self.calls.append(f"self-test.ensure repaired={seen.repaired}")
        return dataclasses.replace(seen, **self.after_test)

    def watch(self, seen, wanted):
        asked = seen.inventory is not None and not seen.leaving
        self.watched = seen.options.gpu_health if asked else self.watched

    def unwatch(self):
        self.watched = None
        self.calls.append("health watch.remove")

    def note(self, name, answer=None):
        def call(*_, **__):
            self.calls.append(name)
            return answer

        return call


def tsa(endpoint="worker-tsa", interface="concourse-tsa", **data):
    good = {
        "tsa-host": "10.0.0.5:2222",
        "tsa-public-key": HOST_KEY,
        "concourse-version": "8.3.0",
    }
    given = {key.replace("_", "-"): value for key, value in data.items()}
    remote = {key: value for key, value in {**good, **given}.items() if value}
    return testing.Relation(
        endpoint, interface=interface, remote_app_name="web", remote_units_data={0: remote}
    )


def two_webs(*timeouts):
    """Two web units of one application, each with its request-timeout; empty: it names none."""
    units = {
        number: {
            "tsa-host": f"10.0.0.{number + 5}:2222",
            "tsa-public-key": HOST_KEY,
            "concourse-version": "8.3.0",
            **({"request-timeout": timeout} if timeout else {}),
        }
        for number, timeout in enumerate(timeouts)
    }
    return testing.Relation(
        "worker-tsa", interface="concourse-tsa", remote_app_name="web", remote_units_data=units
    )


def workers(*keys_, endpoint="web-tsa", interface="concourse-tsa"):
    units = {n: {"worker-public-key": key} if key else {} for n, key in enumerate(keys_)}
    return testing.Relation(
        endpoint, interface=interface, remote_app_name="worker", remote_units_data=units
    )


def database(**data):
    return testing.Relation(
        "postgresql",
        remote_app_name="postgresql",
        remote_app_data=data
        or {"endpoints": "10.0.0.9:5432", "username": "u", "password": "p w'$\""},
    )


def state(mode="worker", relations=(), leader=True, **config):
    options = {"deployment-mode": mode}
    options.update({key.replace("_", "-"): value for key, value in config.items()})
    return testing.State(
        model=MODEL,
        config=options,
        relations=[testing.PeerRelation("peers"), *relations],
        leader=leader,
        resources=[
            testing.Resource(name=name, path=EMPTY) for name in ("concourse", "selftest-wheels")
        ],
    )


def note(found):
    """Return what status shows of a unit's GPUs."""
    made = make_plan(found)
    shown = gpu_status.notes(found, made.choice, made.longest_wait)
    return ", ".join(one.text for one in shown).removeprefix("GPU: ")


def lines(found):
    """Return the status lines of what is wrong with a unit."""
    made = make_plan(found)
    return [*made.problems, *made.ci.problems]


def said(found):
    """Return what is wrong with a unit: level and text of each line."""
    return [(line.level.value, line.text) for line in lines(found)]


def codes(found):
    """Return what is wrong with a unit: level and code of each line."""
    return [(line.level.value, line.code) for line in lines(found)]
