# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What holds for a plan whatever was found, also what nobody thought of."""

import dataclasses
import functools
import os

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ci.concourse.plan.model import ConcourseState, Rivals, WebPlan, WorkerPlan, planned
from ci.concourse.upstream import WEB_REQUEST_TIMEOUT
from gpu_agent.gpu.vendors import registry
from gpu_agent.model.host import Machine, Toolkit
from gpu_agent.model.inventory import Gpu, Inventory, MigDevice, State
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.table import MODES, VENDORS
from plan.gpus import choose, problem_with
from plan.messages import Level
from plan.network import Interface, Network, Offer
from plan.state import RememberedIds, UnitState
from relations.model import Database, Tsa, Web, WebSecrets
from tests.unit.situations import Running, changed, make_plan, note, parse, status_lines

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
    extra_tags=some("gpu", "rack-7", "{0}"),
    ci=st.builds(
        functools.partial(dataclasses.replace, DEFAULTS.ci),
        release=st.builds(
            functools.partial(dataclasses.replace, DEFAULTS.ci.release),
            chosen=st.tuples(
                mostly("8.3.0", st.sampled_from(["", *VERSIONS])), st.sampled_from(["", "ab" * 32])
            ),
            mirror=st.just(""),
        ),
        worker=st.builds(
            functools.partial(dataclasses.replace, DEFAULTS.ci.worker),
            tsa_hosts=mostly((), some("ci.example.com:2222")),
            tsa_public_key=st.just(KEY),
        ),
        web=st.builds(
            functools.partial(dataclasses.replace, DEFAULTS.ci.web),
            port=st.just(8080),
            external_url=texts("", "https://ci.example.com"),
            advertise_address=mostly(
                "", st.sampled_from(["10.1.0.7", "ci.example.com", "10.2.0.0/16"])
            ),
        ),
    ),
)


@st.composite
def inventories(draw):
    state = draw(mostly(State.READY, st.sampled_from(State)))
    cards = draw(st.lists(st.sampled_from(CARDS), unique=True).map(sorted))
    if state is not State.READY or not cards:
        state = State.NVML_ERROR if state is State.READY else state
        about = {"driver": draw(texts("580.95.05", "")), "detail": draw(texts("{0}"))}
        return Inventory(state, vendor="nvidia", **about)
    vendor = draw(mostly("nvidia", st.sampled_from(registry.NAMES)))
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
            nodes=() if vendor == "nvidia" else (f"/dev/dri/renderD{128 + card}",),
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
        machine=Machine(
            architecture=draw(mostly("amd64", st.just("arm64"))),
            toolkit=draw(mostly(Toolkit(PATH, "1.20.0"), st.none() | toolkits)),
        ),
        inventory=draw(inventories()) if asked else None,
        handed_out=draw(some(*(f"GPU-{card}" for card in CARDS))) if asked else (),
        remembered=RememberedIds(before, known, tuple(range(len(known)))),
        ci=ConcourseState(
            worker_name=draw(texts("ci-worker-0")),
            network=draw(networks()),
            rivals=Rivals(
                draw(mostly("", texts("docker.service"))),
                draw(mostly("", st.just("/opt/containerd/bin/runc"))),
            ),
            tarball=draw(st.sampled_from(["", "/r/concourse.tgz"])),
            installed=draw(st.sampled_from(["", *VERSIONS])),
            tsa=draw(mostly(tsa, st.just(Tsa()))),
            web=Web(
                database_related=draw(st.booleans()),
                database=draw(mostly(Database("10.0.0.9", 5432, "c", "u", "p"), st.none())),
                secrets=draw(mostly(WebSecrets("a", "b", "c"), st.none())),
                tsa_public_key=KEY,
            ),
        ),
        leaving=draw(mostly(good=False, other=st.booleans())),
    )


@settings(max_examples=4000 if "GPUCI_SOAK" in os.environ else 150, deadline=None, database=None)
@given(founds())
def test_whatever_is_found(found):
    made = make_plan(found)
    parts = (made.gpu, planned(made).worker, planned(made).web)
    event(", ".join(type(part).__name__ for part in parts))
    assert make_plan(dataclasses.replace(found)) == made
    the_plan_is_one_that_the_rooms_can_follow(found, made)
    what_was_remembered_changes_nothing(found, made)
    tags_and_policy_agree(found, made)
    a_wait_ends_before_concourse_gives_up(found, made)
    what_was_published_stays(found, made)
    for running in (Running(), Running(web=True, worker=True, connected=True)):
        lines = status_lines(found, made, running)
        assert lines
        assert (lines[0].level is Level.ACTIVE) <= (not (made.problems or made.ci.problems))
        assert all(line.text for line in lines)


def the_plan_is_one_that_the_rooms_can_follow(found, made):
    parts = (made.gpu, planned(made).worker, planned(made).web)
    if Keep.AS_IS in parts or (not planned(made).worker and not planned(made).web):
        assert made.problems or made.ci.problems or found.leaving
    if isinstance(planned(made).worker, WorkerPlan) or isinstance(planned(made).web, WebPlan):
        assert planned(made).release
    if isinstance(planned(made).worker, WorkerPlan):
        assert planned(made).worker.tsa_hosts
        assert planned(made).worker.tsa_public_keys
        assert not found.ci.rivals.containerd
    assert (planned(made).worker is None) or found.options.has_worker
    assert (planned(made).web is None) or found.options.has_web


def what_was_remembered_changes_nothing(found, made):
    again = make_plan(dataclasses.replace(found, remembered=made.choice.remember))
    assert again == made or found.leaving


def tags_and_policy_agree(found, made):
    choice = choose(found)
    wrong = found.options.has_worker and not found.leaving and problem_with(found, choice)
    if wrong:
        assert wrong in made.problems
        assert made.gpu is Keep.AS_IS
        if isinstance(planned(made).worker, WorkerPlan):
            assert {uuid for uuid, _ in made.unusable} == {*found.handed_out} != set()
            assert planned(made).worker.tags[0] == "gpu-unusable"
            assert planned(made).worker.wrapped
        return
    assert made.unusable == ()
    if isinstance(made.gpu, GpuPlan):
        assert made.gpu.gpus
        assert all(gpu.devices and gpu in found.inventory.gpus for gpu in made.gpu.gpus)
        assert note(found)
    if not isinstance(planned(made).worker, WorkerPlan):
        return
    assert planned(made).worker.wrapped == isinstance(made.gpu, GpuPlan)
    if not planned(made).worker.wrapped:
        assert planned(made).worker.tags == found.options.extra_tags
        return
    handed_out = {device for gpu in made.gpu.gpus for device in gpu.devices}
    count, vendor = len(handed_out), found.inventory.vendor
    assert planned(made).worker.tags[:3] == (
        "gpu",
        f"gpu-type={vendor}",
        f"gpu-count={count}",
    )
    assert len(set(planned(made).worker.tags)) == len(planned(made).worker.tags)
    assert {f"gpu-count>={number}" for number in range(1, count + 1)} <= set(
        planned(made).worker.tags
    )
    assert f"gpu-count>={count + 1}" not in planned(made).worker.tags
    assert bool(made.gpu.nvidia_runtime) == (vendor == "nvidia")
    assert made.gpu.gpus_per_task <= count
    chosen = any(tag.startswith("gpu-devices=") for tag in planned(made).worker.tags[3:4])
    assert chosen == bool(found.options.gpu_device_ids)
    if found.options.gpu_device_ids:
        indexes = planned(made).worker.tags[3][12:].split(",")
        assert len(set(indexes)) == len(made.gpu.gpus)
    ours = [tag for tag in found.options.extra_tags if tag != "gpu"]
    assert list(planned(made).worker.tags[len(planned(made).worker.tags) - len(ours) :]) == ours


def what_was_published_stays(found, made):
    if not isinstance(planned(made).web, WebPlan):
        return
    told, network = dict(planned(made).web.tsa_addresses), found.ci.network
    again = dataclasses.replace(
        network,
        interfaces=network.interfaces[::-1],
        own=reordered(network.own, planned(made).web.address),
        relations=tuple((n, reordered(offer, told.get(n, ""))) for n, offer in network.relations),
    )
    assert make_plan(changed(found, network=again)).ci.own.web == planned(made).web


def reordered(offer, published):
    return Offer(offer.ingress[::-1], offer.bound[::-1], published or offer.published)


def a_wait_ends_before_concourse_gives_up(found, made):
    """Web's clock and the worker's run for the call in which a task waits."""
    if not isinstance(planned(made).worker, WorkerPlan):
        return
    if not isinstance(made.gpu, GpuPlan):
        assert planned(made).worker.max_active_tasks == 0
        assert bool(planned(made).worker.request_timeout) == bool(made.unusable)
        return
    options, wait = found.options, made.gpu.wait_timeout
    patience = found.ci.tsa.request_timeout
    if options.has_web:
        patience = WEB_REQUEST_TIMEOUT
    if options.ci.worker.tsa_hosts or not patience:
        patience = 300  # Concourse's own
    assert wait <= options.gpu_wait_timeout
    assert wait < patience
    assert planned(made).worker.request_timeout >= max(300, wait + 60)
    assert ("limited" in note(found)) == (wait < options.gpu_wait_timeout)
    devices = sum(len(gpu.devices) for gpu in made.gpu.gpus)
    version = found.ci.installed or ("" if found.ci.tarball else planned(made).release.version)
    counts = options.gpu_allocation == "exclusive" and options.gpus_per_task > 0
    if counts and version in ("8.3.0", "9.9.9"):
        assert 1 <= planned(made).worker.max_active_tasks <= devices
        assert planned(made).worker.max_active_tasks * options.gpus_per_task <= devices
    else:
        assert planned(made).worker.max_active_tasks == 0
