# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a unit should be, in every situation that its parts can be in."""

import dataclasses
import hashlib
import subprocess

import pytest

from ci.concourse.options.release import ReleaseOptions
from ci.concourse.options.worker import WorkerSettings
from ci.concourse.plan.model import (
    ConcoursePlan,
    ReleasePlan,
    Rivals,
    WebPlan,
    WorkerPlan,
    planned,
)
from ci.concourse.upstream import PINNED_SHA256
from gpu_agent.model.inventory import Inventory, MigDevice, State
from gpu_agent.model.keep import Keep
from gpu_agent.runtime.settings import GpuPlan
from options.table import MODES
from plan.gpu_offers import GpuOffer
from plan.gpus import Choice
from plan.model import HostPlan, Plan
from plan.network import Network, Offer
from plan.state import RememberedIds
from relations.model import Tsa, Web, WebSecrets
from tests.unit.situations import (
    DATABASE,
    GPUS,
    HOST_KEY,
    OUTSIDE,
    READY,
    RUNTIME,
    SECRETS,
    TSA,
    WEB,
    WORKER_KEY,
    changed,
    codes,
    gpu_unit,
    make_plan,
    parse,
    said,
    unit,
)

NAMED = f"8.3.0@sha256:{'ab' * 32}"
ATTACH = "juju attach-resource ci-gpu concourse=<release tarball>"


def blocked(code):
    return [("blocked", code)]


def waiting(code):
    return [("waiting", code)]


def test_a_worker_without_gpus():
    made = make_plan(
        unit(options={"extra-tags": "b,a", "worker-settings": "dns-server=10.0.0.53"})
    )
    worker = WorkerPlan(
        name="ci-ci-gpu-3",
        tsa_hosts=("10.0.0.5:2222",),
        tsa_public_keys=(HOST_KEY,),
        private_key="",
        tags=("b", "a"),
        settings=WorkerSettings(("10.0.0.53",)),
        wrapped=False,
    )
    release = ReleasePlan("8.3.0", "amd64", PINNED_SHA256["8.3.0"], "", webs=("8.3.0",))
    release = dataclasses.replace(release, attach=ATTACH)
    offer = GpuOffer("ci-gpu/3", ())
    assert planned(made) == ConcoursePlan(release, worker)
    assert (made.gpu, made.problems, made.ci.problems) == (None, (), ())
    assert (made.host, made.offer, made.choice) == (HostPlan(), offer, Choice())


def test_a_worker_with_gpus():
    made = make_plan(gpu_unit({"extra-tags": "rack-7"}))
    assert made.problems == ()
    assert made.gpu == GpuPlan(GPUS, RUNTIME, driver="580.95.05", cuda="13.0")
    assert planned(made).worker.wrapped
    assert planned(made).worker.tags[:3] == ("gpu", "gpu-type=nvidia", "gpu-count=2")
    assert planned(made).worker.tags[-1] == "rack-7"
    assert not [tag for tag in planned(made).worker.tags if tag.startswith("gpu-devices")]


def test_a_chosen_gpu():
    made = make_plan(gpu_unit({"gpu-device-ids": "1"}))
    assert made.gpu.gpus == GPUS[1:]
    begins = ("gpu", "gpu-type=nvidia", "gpu-count=1", "gpu-devices=1")
    assert planned(made).worker.tags[:4] == begins
    assert made.choice.remember == RememberedIds(("1",), (("1", GPUS[1].uuid),), (1,))


def test_gpus_that_are_turned_off_leave_nothing():
    made = make_plan(unit(remembered=RememberedIds(), rivals=Rivals(runc="/x")))
    assert (made.gpu, planned(made).worker.wrapped, planned(made).worker.tags) == (None, False, ())
    assert (made.choice.remember, made.problems) == (RememberedIds(), ())


def test_the_key_and_the_address_of_a_web_outside_juju_are_taken():
    worker = make_plan(unit(options=OUTSIDE, tsa=Tsa())).ci.own.worker
    assert (worker.tsa_hosts, worker.tsa_public_keys) == (("ci.example.com:2222",), (WORKER_KEY,))


def test_a_web():
    made = make_plan(unit("web"))
    url, keys = "http://10.0.0.7:8080", (WORKER_KEY,)
    web = WebPlan(
        "10.0.0.7", 8080, url, DATABASE, SECRETS, keys, parse().ci.web, queues_tasks=True
    )
    assert (planned(made).web, planned(made).worker, made.gpu, made.problems) == (
        web,
        None,
        None,
        (),
    )


@pytest.mark.parametrize(
    ("given", "address", "url"),
    [
        ("", "fd00::7", "http://[fd00::7]:8080"),
        ("https://ci.example.com/", "10.0.0.7", "https://ci.example.com"),
    ],
)
def test_the_url_of_a_web(given, address, url):
    network = Network(own=Offer((address,)))
    found = unit("web", options={"external-url": given}, network=network)
    assert make_plan(found).ci.own.web.external_url == url


def test_both_on_one_machine_need_no_relation_and_no_database():
    web = dataclasses.replace(WEB, database=None, database_related=False)
    made = make_plan(unit("all", tsa=Tsa(), web=web))
    assert planned(made).web.database is None
    worker = planned(made).worker
    assert (worker.tsa_hosts, worker.tsa_public_keys) == (("127.0.0.1:2222",), (HOST_KEY,))
    assert made.problems == ()


def test_one_that_is_leaving_starts_nothing():
    for mode in MODES:
        found = unit(mode, options={"enable-gpu": True}, leaving=True)
        nothing = GpuOffer(found.unit, ())
        assert make_plan(found) == Plan((), None, offer=nothing)


# Found, what is read, and what becomes of gpu, worker and web: "new" for a plan.
ASKS = {
    "worker not related": (
        unit(tsa=Tsa()),
        waiting("no-web"),
        (None, None, None),
    ),
    "worker not related, with GPUs": (
        gpu_unit(tsa=Tsa()),
        waiting("no-web"),
        ("new", None, None),
    ),
    "web says nothing yet": (
        unit(tsa=Tsa(related=True)),
        waiting("no-web-data"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "web says nonsense": (
        unit(tsa=Tsa(related=True, refused=("tsa-host of web/0: is not ADDRESS:PORT", "more"))),
        waiting("unusable-web-data"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "no checksum for a release": (
        unit(options={"concourse-version": "9.0.0"}, tsa=dataclasses.replace(TSA, versions=())),
        blocked("no-checksum"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "no checksum for a web's release": (
        unit("web", options={"concourse-version": "9.0.0"}),
        blocked("no-checksum"),
        (None, None, Keep.AS_IS),
    ),
    "rival": (
        gpu_unit(rivals=Rivals("docker.service")),
        blocked("other-containerd"),
        ("new", Keep.AS_IS, None),
    ),
    "foreign runc": (
        gpu_unit(rivals=Rivals(runc="/opt/containerd/bin/runc")),
        blocked("foreign-runc"),
        ("new", Keep.AS_IS, None),
    ),
    "two ways to a web": (
        unit(options=OUTSIDE),
        blocked("two-ways-to-web"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "older than its web": (
        unit(options={"concourse-version": "8.2.5"}),
        blocked("web-is-other-release"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "no database": (
        unit("web", web=Web(secrets=SECRETS)),
        waiting("no-database"),
        (None, None, None),
    ),
    "database says nothing yet": (
        unit("web", web=Web(database_related=True, secrets=SECRETS)),
        waiting("no-database-data"),
        (None, None, Keep.AS_IS),
    ),
    "no keys of the web yet": (
        unit("web", web=dataclasses.replace(WEB, secrets=None)),
        waiting("no-web-keys"),
        (None, None, Keep.AS_IS),
    ),
    "no keys of the own web yet": (
        unit("all", tsa=Tsa(), web=dataclasses.replace(WEB, secrets=None)),
        waiting("no-web-keys"),
        (Keep.AS_IS, Keep.AS_IS, Keep.AS_IS),
    ),
    "another web beside the own": (
        unit("all"),
        blocked("own-web-and-another"),
        (Keep.AS_IS, Keep.AS_IS, "new"),
    ),
    "two Concourses": (
        unit(tsa=dataclasses.replace(TSA, webs=("ci-a", "ci-b"))),
        blocked("several-webs"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "three of all without a database": (
        unit("all", tsa=Tsa(), web=Web(secrets=SECRETS), planned_units=3),
        blocked("no-shared-database"),
        (Keep.AS_IS, Keep.AS_IS, Keep.AS_IS),
    ),
    "Juju does not tell of the resource": (
        unit(tarball=None),
        waiting("resource-unknown"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "a bad option of the web beside a worker": (
        unit("all", tsa=Tsa(), options={"web-port": "x"}),
        blocked("bad-option"),
        (None, "new", Keep.AS_IS),
    ),
    "a bad option of the worker without a web yet": (
        gpu_unit({"worker-settings": "mtu=1"}, tsa=Tsa()),
        blocked("bad-option"),
        ("new", Keep.AS_IS, None),
    ),
    "a bad option of GPUs": (
        gpu_unit({"gpus-per-task": "x"}),
        blocked("bad-option"),
        (Keep.AS_IS, Keep.AS_IS, None),
    ),
    "a bad option of GPUs that are off": (
        unit(options={"gpus-per-task": "x"}),
        blocked("bad-option"),
        (None, "new", None),
    ),
    "no address yet": (
        unit("web", network=Network()),
        waiting("no-address"),
        (None, None, Keep.AS_IS),
    ),
}


def parts(made):
    kinds = (GpuPlan, WorkerPlan, WebPlan)
    values = (made.gpu, planned(made).worker, planned(made).web)
    pairs = zip(values, kinds, strict=True)
    return tuple("new" if isinstance(value, kind) else value for value, kind in pairs)


@pytest.mark.parametrize("name", ASKS)
def test_what_is_in_the_way_is_said_with_the_next_step(name):
    found, problems, becomes = ASKS[name]
    made = make_plan(found)
    assert codes(found) == problems
    assert parts(made) == becomes


def test_gpus_that_fail_do_not_hinder_the_web_beside_them():
    assert parts(
        make_plan(unit("all", options={"enable-gpu": True}, machine={"toolkit": None}))
    ) == (Keep.AS_IS, Keep.AS_IS, "new")


def test_gpus_are_no_business_of_a_web():
    found = unit(
        "web", options={"enable-gpu": True}, inventory=Inventory(State.NO_GPU, vendor="nvidia")
    )
    made = make_plan(found)
    assert parts(made) == (None, None, "new")
    assert made.problems == ()


def test_all_that_is_wrong_is_said():
    found = unit("all", options={"enable-gpu": True}, machine={"toolkit": None})
    found = changed(
        found,
        options=dataclasses.replace(
            found.options,
            ci=dataclasses.replace(found.options.ci, release=ReleaseOptions(("9.0.0", ""), "")),
        ),
        rivals=Rivals("docker.service"),
        web=dataclasses.replace(WEB, database=None),
    )
    assert [code for _, code in codes(found)] == [
        "toolkit-missing", "no-checksum", "no-database-data", "other-containerd",
    ]  # fmt: skip


def test_mig_devices_are_what_is_handed_out():
    sliced = dataclasses.replace(
        GPUS[0], mig_enabled=True, mig=(MigDevice("MIG-a", "1g.10gb"), MigDevice("MIG-b", "x"))
    )
    made = make_plan(gpu_unit(inventory=dataclasses.replace(READY, gpus=(sliced, GPUS[1]))))
    assert [gpu.devices for gpu in made.gpu.gpus] == [("MIG-a", "MIG-b"), (GPUS[1].uuid,)]
    assert "gpu-count=3" in planned(made).worker.tags


@pytest.mark.parametrize(
    ("architecture", "options", "tarball", "sha256"),
    [
        ("amd64", {}, "", PINNED_SHA256["8.3.0"]),
        ("amd64", {"concourse-version": NAMED}, "", "ab" * 32),
        ("arm64", {"concourse-version": NAMED}, "", "ab" * 32),
        ("arm64", {}, "/r/concourse.tgz", ""),
    ],
)
def test_a_release_has_a_checksum_or_is_at_hand(architecture, options, tarball, sha256):
    found = unit(options=options, machine={"architecture": architecture}, tarball=tarball)
    wanted = ReleasePlan("8.3.0", architecture, sha256, tarball, webs=("8.3.0",))
    wanted = dataclasses.replace(wanted, attach=ATTACH, is_named=bool(options))
    assert make_plan(found).ci.own.release == wanted


def test_no_checksum_of_amd64_is_taken_for_arm64():
    made = make_plan(unit(machine={"architecture": "arm64"}))
    assert planned(made).release is None
    text = said(unit(machine={"architecture": "arm64"}))[0][1]
    assert "8.3.0 on arm64" in text
    assert "/releases/download/v8.3.0/concourse-8.3.0-linux-arm64.tgz " in text


@pytest.mark.parametrize("served", [True, False])
def test_the_command_of_a_release_without_a_checksum_sets_the_right_one(tmp_path, served):
    """An operator pastes it into a shell; `juju` stands in for the client.

    If the download fails, no checksum is set: that of an empty file would be accepted.
    """
    folder = tmp_path / "mirror/v8.3.0"
    folder.mkdir(parents=True)
    if served:
        (folder / "concourse-8.3.0-linux-arm64.tgz").write_bytes(b"a release")
    juju = tmp_path / "juju"
    juju.write_text('#!/bin/sh\necho "$@"\n')
    juju.chmod(0o755)
    mirror = "https://mirror.example.com"
    found = unit(options={"concourse-mirror": mirror}, machine={"architecture": "arm64"})
    command = said(found)[0][1].partition(" now, run ")[2].partition("; or juju ")[0]
    done = subprocess.run(
        ["bash", "-c", command.replace(mirror, f"file://{tmp_path}/mirror")], cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    digest = hashlib.sha256(b"a release").hexdigest()
    told = f"config ci-gpu concourse-version=8.3.0@sha256:{digest}\n" if served else ""
    assert (done.stdout, done.returncode == 0) == (told, served)
    named = {"concourse-version": f"8.3.0@sha256:{digest}"}
    made = make_plan(unit(options=named, machine={"architecture": "arm64"}))
    assert planned(made).release.sha256 == digest


@pytest.mark.parametrize(("installed", "works"), [("", True), ("8.3.0", True), ("8.2.5", False)])
def test_a_release_at_hand_is_judged_by_what_it_holds(installed, works):
    options = {"concourse-version": "8.2.5"}
    found = unit(options=options, tarball="/r/concourse.tgz", installed=installed)
    texts = [text for _, text in said(found)]
    assert (texts == []) is works
    assert works or "juju attach-resource ci-gpu concourse=<tarball of 8.3.0>" in texts[0]


def test_secrets_do_not_show_where_a_plan_is_printed():
    secret = "0123456789"
    worker = WorkerPlan("w", (), (), secret, (), WorkerSettings(), wrapped=False)
    database, secrets = dataclasses.replace(DATABASE, password=secret), WebSecrets(*[secret] * 3)
    web = WebPlan("", 1, "", database, secrets, (), parse().ci.web)
    assert secret not in repr((worker, web))
