# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What holds for a plan whatever was found, also what nobody thought of."""

import dataclasses
import functools
import os

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ci.concourse.plan.model import WebPlan, WorkerPlan
from ci.concourse.upstream import WEB_REQUEST_TIMEOUT
from gpu_agent.model.host import Machine, Toolkit
from gpu_agent.model.inventory import Gpu, Inventory, MigDevice, State, Vendor
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.table import MODES, VENDORS
from plan import plan, status
from plan.gpus import choose, problem_with
from plan.network import Interface, Network, Offer
from plan.state import RememberedIds, UnitState
from relations.model import Database, Tsa, Web, WebSecrets
from tests.unit.situations import parse

DEFAULTS = parse()
KEY = "ssh-rsa AAAA"
PATH = "/usr/bin/nvidia-container-runtime"
CARDS = range(4)
IDS = [*map(str, CARDS), "7", "0000:02:00.0", "GPU-1", "GPU-2", "GPU-none"]
VERSIONS = ["7.9.1", "8.2.5", "8.3.0", "9.9.9"]


def some(*values):
    return st.lists(st.sampled_from(values), unique=True, max_size=3).map(tuple)


def texts(*values):
    return st.sampled_from(values) | st.text(max_size=8)


def mostly(good, other):
    """Few situations would get far if each part of them were as likely bad as good."""
    return st.integers(0, 7).flatmap(lambda dice: other if dice == 7 else st.just(good))


options = st.builds(
    functools.partial(dataclasses.replace, DEFAULTS),
    deployment_mode=st.sampled_from(MODES),
    enable_gpu=mostly(good=True, other=st.booleans()),
    gpu_device_ids=st.just(()) | some(*IDS),
    gpu_vendor=st.sampled_from(VENDORS),
    gpu_allocation=st.sampled_from(["exclusive", "shared"]),
    gpus_per_task=mostly(1, st.integers(0, 12)),
    gpu_wait_timeout=st.sampled_from([0, 240, 241, 280, 281, 1800]) | st.integers(0, 1800),
    gpu_for_privileged_tasks=st.booleans(),
    release=st.builds(
        functools.partial(dataclasses.replace, DEFAULTS.release),
        chosen=st.tuples(
            mostly("8.3.0", st.sampled_from(["", *VERSIONS])), st.sampled_from(["", "ab" * 32])
        ),
        mirror=st.just(""),
    ),
    worker=st.builds(
        functools.partial(dataclasses.replace, DEFAULTS.worker),
        tags=some("gpu", "rack-7", "{0}"),
        tsa_hosts=mostly((), some("ci.example.com:2222")),
        tsa_public_key=st.just(KEY),
    ),
    web=st.builds(
        functools.partial(dataclasses.replace, DEFAULTS.web),
        port=st.just(8080),
        external_url=texts("", "https://ci.example.com"),
        advertise_address=mostly(
            "", st.sampled_from(["10.1.0.7", "ci.example.com", "10.2.0.0/16"])
        ),
    ),
)


@st.composite
def inventories(draw):
    state = draw(mostly(State.READY, st.sampled_from(State)))
    cards = draw(st.lists(st.sampled_from(CARDS), unique=True).map(sorted))
    if state is not State.READY or not cards:
        state = State.NVML_ERROR if state is State.READY else state
        return Inventory(state, driver=draw(texts("580.95.05", "")), detail=draw(texts("{0}")))
    vendor = draw(mostly(Vendor.NVIDIA, st.sampled_from(Vendor)))
    gpus = tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{card}",
            vendor=vendor,
            model=draw(texts("NVIDIA A100-SXM4-80GB", "Tesla T4", "AMD Instinct MI300X")),
            memory_mib=draw(st.integers(0, 1 << 20)),
            pci_address=f"0000:0{card + 1}:00.0",
            minor=card,
            mig_enabled=(mig := draw(mostly(-1, st.integers(0, 2)))) >= 0,
            mig=tuple(
                MigDevice(f"MIG-{card}-{n}", draw(texts("1g.10gb", "3g.40gb")))
                for n in range(max(mig, 0))
            ),
            nodes=() if vendor is Vendor.NVIDIA else (f"/dev/dri/renderD{128 + card}",),
        )
        for index, card in enumerate(cards)
    )
    return Inventory(
        state,
        gpus,
        driver=draw(texts("580.95.05", "")),
        cuda=draw(texts("13.0", "12.4", "14.99", "")),
        lost=draw(some("0000:04:00.0")),
        detail=draw(texts("GPU 3: GPU is lost")),
        vendor=vendor,
    )


@st.composite
def networks(draw):
    names = draw(st.lists(st.sampled_from(["eth0", "eth1", "br0", "concourse0"]), unique=True))
    interfaces = tuple(
        Interface(
            name,
            kind=draw(st.sampled_from(["", "bridge", "veth", "vlan", "dummy"])),
            addresses=(f"10.{number}.0.7",),
            master=draw(st.sampled_from(["", "br0", "concourse0"])),
            lower=draw(st.sampled_from(["", "eth0"])),
            has_default_route=draw(st.booleans()),
        )
        for number, name in enumerate(names)
    )
    known = some("10.0.0.7", "10.1.0.7", "10.2.0.7", "10.3.0.7", "fd00::7", "203.0.113.9")
    published = st.sampled_from(["", "10.0.0.7", "203.0.113.9"])
    offers = st.builds(Offer, known, known, published)
    return Network(interfaces, draw(offers), ((3, draw(offers)), (4, draw(offers))))


@st.composite
def founds(draw):
    chosen = draw(options)
    asked = chosen.enable_gpu and chosen.has_worker
    before = draw(st.just(()) | some(*map(str, CARDS)) | st.just(chosen.gpu_device_ids))
    known = tuple((item, f"GPU-{draw(st.sampled_from(CARDS))}") for item in before)
    versions = draw(mostly(("8.3.0",), st.lists(texts(*VERSIONS), max_size=2).map(tuple)))
    hosts = draw(mostly(("10.0.0.5:2222",), some("10.0.0.5:2222", "[fd00::5]:2222")))
    tsa = Tsa(
        related=True,
        hosts=hosts,
        public_keys=(KEY,) * len(hosts),
        versions=versions,
        request_timeout=draw(st.sampled_from([0, 300, 345, 2100, 7200])),
        refused=("tsa-host of web/1: is not ADDRESS:PORT",),
    )
    toolkits = texts("1.20.0", "1.19.1", "1.19.0", "1.19", "").map(lambda v: Toolkit(PATH, v))
    return UnitState(
        options=chosen,
        unit="ci-gpu/3",
        worker_name=draw(texts("ci-worker-0")),
        network=draw(networks()),
        machine=Machine(
            architecture=draw(mostly("amd64", st.just("arm64"))),
            toolkit=draw(mostly(Toolkit(PATH, "1.20.0"), st.none() | toolkits)),
            rival=draw(mostly("", texts("docker.service"))),
            foreign_runc=draw(mostly("", st.just("/opt/containerd/bin/runc"))),
        ),
        inventory=draw(inventories()) if asked else None,
        handed_out=draw(some(*(f"GPU-{card}" for card in CARDS))) if asked else (),
        remembered=RememberedIds(before, known, tuple(range(len(known)))),
        tarball=draw(st.sampled_from(["", "/r/concourse.tgz"])),
        installed=draw(st.sampled_from(["", *VERSIONS])),
        tsa=draw(mostly(tsa, st.just(Tsa()))),
        web=Web(
            database_related=draw(st.booleans()),
            database=draw(mostly(Database("10.0.0.9", 5432, "c", "u", "p"), st.none())),
            secrets=draw(mostly(WebSecrets("a", "b", "c"), st.none())),
            tsa_public_key=KEY,
        ),
        leaving=draw(mostly(good=False, other=st.booleans())),
    )


@settings(max_examples=4000 if "GPUCI_SOAK" in os.environ else 150, deadline=None, database=None)
@given(founds())
def test_whatever_is_found(found):
    made = plan.make(found)
    parts = (made.gpu, made.worker, made.web)
    event(", ".join(type(part).__name__ for part in parts))
    assert plan.make(dataclasses.replace(found)) == made
    the_plan_is_one_that_the_rooms_can_follow(found, made)
    what_was_remembered_changes_nothing(found, made)
    tags_and_policy_agree(found, made)
    a_wait_ends_before_concourse_gives_up(found, made)
    what_was_published_stays(found, made)
    for running in (status.Running(), status.Running(web=True, worker=True, connected=True)):
        lines = status.lines(found, made, running)
        assert lines
        assert (lines[0].level is status.Level.ACTIVE) <= (not made.problems)
        assert all(line.text for line in lines)


def the_plan_is_one_that_the_rooms_can_follow(found, made):
    parts = (made.gpu, made.worker, made.web)
    if Keep.AS_IS in parts or (not made.worker and not made.web):
        assert made.problems or found.leaving
    if isinstance(made.worker, WorkerPlan) or isinstance(made.web, WebPlan):
        assert made.release
    if isinstance(made.worker, WorkerPlan):
        assert made.worker.tsa_hosts
        assert made.worker.tsa_public_keys
        assert not found.machine.rival
    assert (made.worker is None) or found.options.has_worker
    assert (made.web is None) or found.options.has_web


def what_was_remembered_changes_nothing(found, made):
    again = plan.make(dataclasses.replace(found, remembered=made.choice.remember))
    assert again == made or found.leaving


def tags_and_policy_agree(found, made):
    choice = choose(found)
    wrong = found.options.has_worker and not found.leaving and problem_with(found, choice)
    if wrong:
        assert wrong in made.problems
        assert made.gpu is Keep.AS_IS
        if isinstance(made.worker, WorkerPlan):
            assert {uuid for uuid, _ in made.unusable} == {*found.handed_out} != set()
            assert made.worker.tags[0] == "gpu-unusable"
            assert made.worker.wrapped
        return
    assert made.unusable == ()
    if isinstance(made.gpu, GpuPlan):
        assert made.gpu.gpus
        assert all(gpu.devices and gpu in found.inventory.gpus for gpu in made.gpu.gpus)
        assert status.gpu_note(found, made.choice)
    if not isinstance(made.worker, WorkerPlan):
        return
    assert made.worker.wrapped == isinstance(made.gpu, GpuPlan)
    if not made.worker.wrapped:
        assert made.worker.tags == found.options.worker.tags
        return
    handed_out = {device for gpu in made.gpu.gpus for device in gpu.devices}
    count, vendor = len(handed_out), found.inventory.vendor
    assert made.worker.tags[:3] == ("gpu", f"gpu-type={vendor.value}", f"gpu-count={count}")
    assert len(set(made.worker.tags)) == len(made.worker.tags)
    assert {f"gpu-count>={number}" for number in range(1, count + 1)} <= set(made.worker.tags)
    assert f"gpu-count>={count + 1}" not in made.worker.tags
    assert bool(made.gpu.nvidia_runtime) == (vendor is Vendor.NVIDIA)
    assert made.gpu.gpus_per_task <= count
    chosen = any(tag.startswith("gpu-devices=") for tag in made.worker.tags[3:4])
    assert chosen == bool(found.options.gpu_device_ids)
    if found.options.gpu_device_ids:
        indexes = made.worker.tags[3][12:].split(",")
        assert len(set(indexes)) == len(made.gpu.gpus)
    ours = [tag for tag in found.options.worker.tags if tag != "gpu"]
    assert list(made.worker.tags[len(made.worker.tags) - len(ours) :]) == ours


def what_was_published_stays(found, made):
    if not isinstance(made.web, WebPlan):
        return
    told, network = dict(made.web.tsa_addresses), found.network
    again = dataclasses.replace(
        network,
        interfaces=network.interfaces[::-1],
        own=reordered(network.own, made.web.address),
        relations=tuple((n, reordered(offer, told.get(n, ""))) for n, offer in network.relations),
    )
    assert plan.make(dataclasses.replace(found, network=again)).web == made.web


def reordered(offer, published):
    return Offer(offer.ingress[::-1], offer.bound[::-1], published or offer.published)


def a_wait_ends_before_concourse_gives_up(found, made):
    """Web's clock and the worker's run for the call in which a task waits."""
    if not isinstance(made.worker, WorkerPlan):
        return
    if not isinstance(made.gpu, GpuPlan):
        assert made.worker.max_active_tasks == 0
        assert bool(made.worker.request_timeout) == bool(made.unusable)
        return
    options, wait = found.options, made.gpu.wait_timeout
    patience = found.tsa.request_timeout
    if options.has_web:
        patience = WEB_REQUEST_TIMEOUT
    if options.worker.tsa_hosts or not patience:
        patience = 300  # Concourse's own
    assert wait <= options.gpu_wait_timeout
    assert wait < patience
    assert made.worker.request_timeout >= max(300, wait + 60)
    assert ("limited" in status.gpu_note(found, made.choice)) == (wait < options.gpu_wait_timeout)
    devices = sum(len(gpu.devices) for gpu in made.gpu.gpus)
    version = found.installed or ("" if found.tarball else made.release.version)
    counts = options.gpu_allocation == "exclusive" and options.gpus_per_task > 0
    if counts and version in ("8.3.0", "9.9.9"):
        assert 1 <= made.worker.max_active_tasks <= devices
        assert made.worker.max_active_tasks * options.gpus_per_task <= devices
    else:
        assert made.worker.max_active_tasks == 0
