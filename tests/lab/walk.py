# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`make lab`: from nothing to a CI task with its GPUs, in one walk that can be walked again."""

import filecmp
import json
import pathlib
import re
import subprocess
import time

from tests.fly import SHOW_GPUS
from tests.lab import archive, cgroups, concourse, nested, outfit, table
from tests.lab.builds import Build
from tests.lab.errors import LabError, WrongUse
from tests.lab.juju import charmfile
from tests.lab.machines import Machine
from tests.lab.session import ROOT, Lab, Progress

# Volumes and snapshots of a worker are overlay mounts of their own.
BINDS = ("/var/lib/concourse",)
GPUS = 2
POSTGRESQL = "tests.lab.postgresql:Postgresql"
WORKER_SECONDS = 60
# A task that has shown its GPUs keeps them until this file is there, in all tasks' root.
GO = "/tmp/lab-go"
KEEP_GPUS = f"{SHOW_GPUS}\nuntil [ -e {GO} ]; do sleep 0.1; done"
# The container of the newest get: which GPU nodes its /dev has, and GPU variables its spec.
LOOK_AT_GET = """
import glob, json, os
bundles = []
for path in glob.glob("/run/containerd/io.containerd.runtime.v2.task/*/*/config.json"):
    spec = json.load(open(path))
    if any(m["destination"] == "/tmp/build/get" for m in spec["mounts"]):
        bundles.append((os.stat(path).st_mtime, os.path.dirname(path), spec))
if bundles:
    _, bundle, spec = max(bundles, key=lambda b: b[0])
    root = "/proc/%s/root" % open(bundle + "/init.pid").read()
    nodes = [p[len(root):] for p in glob.glob(root + "/dev/nvidia*")]
    ours = ("NVIDIA_", "GPU_", "CUDA_")
    variables = [v for v in spec["process"]["env"] if v.startswith(ours)]
    print(json.dumps({"devices": sorted(nodes), "variables": sorted(variables)}))
"""


def pack() -> pathlib.Path:
    """Pack the charm, where it is not current, and return it.

    Raises:
        LabError: it cannot be packed.
    """
    done = subprocess.run(["/usr/bin/make", "-s", "-C", str(ROOT), "pack"], check=False)
    found = list(ROOT.glob("gpu-ci-worker_*.charm"))
    if done.returncode or len(found) != 1:
        raise LabError("the charm was not packed: see the lines above")
    return found[0]


def deploy(lab: Lab, charm: pathlib.Path, bare: bool = False, gpus: int = GPUS) -> None:
    """Deploy and relate missing applications; refresh those with another charm.

    With `bare` the worker's machine has cards, and neither driver nor toolkit.
    """
    there = set(lab.store.column("SELECT name FROM application"))
    tarball = pathlib.Path(lab.setting("concourse"))
    resources = {"concourse": tarball}
    if "postgresql" not in there:
        lab.model.play("postgresql", POSTGRESQL)
    if "web" not in there:
        lab.model.deploy(charm, "web", {"deployment-mode": "web"}, resources, binds=BINDS)
    if "worker" not in there:
        options = {"deployment-mode": "worker", "enable-gpu": "true"}
        wanted = {"gpus": gpus, "bare": bare}
        if bare:
            options |= mirror_options(lab, charm)
        lab.model.deploy(charm, "worker", options, resources, binds=BINDS, outfit=wanted)
    for app in {"web", "worker"} & there:
        stored = pathlib.Path(lab.store.application(app)["charm"])
        if not filecmp.cmp(stored, charm, shallow=False):
            lab.say(f"{app}: refreshing its charm")
            lab.model.refresh(app, charm, force_units=True)
    for ends in (("web:postgresql", "postgresql:database"), ("web:web-tsa", "worker:worker-tsa")):
        if not lab.model.integrations.related(*ends):
            lab.model.integrations.integrate(*ends)


def mirror_options(lab: Lab, charm: pathlib.Path) -> dict[str, str]:
    """What has a charm take the toolkit from the lab's mirror; nothing where it knows of none."""
    known = charmfile.read(charm).options
    options = archive.options(lab.state_dir / "shared")
    return {name: value for name, value in options.items() if name in known}


def can_be_bare(lab: Lab) -> bool:
    """Have what bare machines need; False, and said why, where there can be none."""
    if obstacle := archive.obstacle():
        lab.say(f"machines with driver and toolkit, since {obstacle}")
        return False
    outfit.prepare_bare(lab.state_dir / "shared")
    lab.say("machines without driver and toolkit: the charm gets these from the lab's archive")
    return True


def choose(lab: Lab, is_nested: bool = False) -> None:
    """Decide which Concourse and which NVIDIA runtime, and say so; a lab keeps its choice.

    With `is_nested` it is one with nested.release's runc.

    Raises:
        WrongUse: see `concourse.choose`, `outfit.prepare` and `nested.release`; or the lab has
            one without that.
    """
    if not lab.setting("concourse"):
        tarball, name = concourse.choose(lab)
        if is_nested:
            tarball = nested.release(tarball, lab.state_dir / "concourse-nested.tgz")
            lab.setting("nested", nested.HELP)
        lab.setting("concourse-name", name)
        lab.setting("nvidia-name", outfit.prepare(lab.state_dir / "shared"))
        lab.setting("concourse", str(tarball))
    if is_nested and not lab.setting("nested"):
        raise WrongUse("this lab was begun without --nested: take it down first: lab destroy")
    lab.say(f"Concourse: {lab.setting('concourse-name')}")
    if lab.setting("nested"):
        lab.say(f"nested: {lab.setting('nested')}")
    lab.say(f"nvidia-container-runtime: {lab.setting('nvidia-name')}")
    lab.say("cgroups: v2" if cgroups.is_unified() else "cgroups: v1 (or hybrid)")


def up(lab: Lab, say: Progress, bare: bool = False, is_nested: bool = False) -> None:
    """The whole walk; with `bare` from a worker machine without driver and toolkit.

    With `is_nested` its tasks lie in control groups as nested.HELP says.

    Raises:
        WrongUse: see `choose`.
        LabError: a unit does not become ready, or Concourse does not do what it should.
    """
    charm = pack()
    say(f"charm: {charm.name}")
    choose(lab, is_nested)
    lab.controller.wake()
    deploy(lab, charm, bare and can_be_bare(lab))
    lab.settle()
    check(lab)
    fly = concourse.Fly(lab)
    fly.login()
    say("logged in to Concourse with fly")
    tags = wait_for_worker(fly)
    print(f"\n{table.table(lab.store)}\n", flush=True)
    exclusive = lab.model.config("worker")["gpu-allocation"] == "exclusive"
    show_tasks(lab, fly, say, 2 if exclusive and "gpu-count>=2" in tags else 1)
    show_get(lab, fly, say)
    say(f"the lab is up: lab status, lab task -- CMD, lab --help (after {say.seconds:.0f} s)")


def check(lab: Lab) -> None:
    """Have every unit active.

    Raises:
        LabError: one is not; with the table and what to do.
    """
    bad = lab.store.column("SELECT name FROM unit WHERE status != 'active' OR agent = 'error'")
    if bad:
        raise LabError(
            f"not ready: {', '.join(bad)}; see lab logs {bad[0]}\n\n{table.table(lab.store)}"
        )


def wait_for_worker(fly: concourse.Fly) -> list[str]:
    """Wait until Concourse has a running worker with the tag gpu; the tags of that.

    Raises:
        LabError: it has none after a minute.
    """
    deadline = time.monotonic() + WORKER_SECONDS
    while True:
        workers = fly.workers()
        for worker in workers:
            if worker["state"] == "running" and "gpu" in (worker["tags"] or ()):
                return worker["tags"]
        if time.monotonic() > deadline:
            seen = [(w["name"], w["state"], w["tags"]) for w in workers]
            raise LabError(f"Concourse has no running worker with the tag gpu: {seen or 'none'}")
        time.sleep(0.5)


def show_tasks(lab: Lab, fly: concourse.Fly, say: Progress, at_once: int) -> None:
    """Run tasks tagged gpu that list their devices and variables, one or two at once.

    Raises:
        LabError: one failed or saw no GPU, or both saw the same one.
    """
    tasks = "two CI tasks tagged gpu at once" if at_once == 2 else "a CI task tagged gpu"
    say(f"running {tasks}, to list GPU devices and variables:")
    workers = [lab.park.get(name) for name in lab.park.names() if name.startswith("worker-")]
    for machine in workers:
        machine.enter("/bin/rm", "-f", outfit.ROOTFS + GO)
    task = fly.task(["sh", "-ec", KEEP_GPUS], ["gpu"])
    builds = [Build(fly, *task) for _ in range(at_once)]
    try:
        seen = [build.line("variable NVIDIA_VISIBLE_DEVICES=(.*)")[1] for build in builds]
    finally:
        for machine in workers:
            machine.enter("/usr/bin/touch", outfit.ROOTFS + GO)
    for build in builds:
        if build.wait():
            raise LabError(f"a task failed:\n{build.output}")
        lines = [line for line in build.output.splitlines() if re.match("device|variable", line)]
        print(_indented("\n".join([f"build {build.number}:", *lines])), flush=True)
    if not all(gpus.startswith("GPU-") for gpus in seen) or len(set(seen)) != at_once:
        raise LabError(f"the tasks were to have a GPU each, and had {' and '.join(seen)}")


def show_get(lab: Lab, fly: concourse.Fly, say: Progress) -> None:
    """Run a get on the same worker and show that it saw no GPU.

    Raises:
        LabError: it failed, or saw one.
    """
    say("running a get on the same worker:")
    done = fly.get(["gpu"])
    print(_indented(done.stdout + done.stderr), flush=True)
    seen = look_at_get(lab.park.get("worker-0"))
    print(f"    devices in its container: {', '.join(seen['devices']) or 'none'}")
    print(f"    GPU variables in its container: {', '.join(seen['variables']) or 'none'}")
    if done.returncode or seen["devices"] or seen["variables"]:
        raise LabError("the get failed, or saw a GPU")


def look_at_get(machine: Machine) -> dict[str, list[str]]:
    """What the newest get container on a worker has: `devices` and `variables` of GPUs.

    Raises:
        LabError: there is no such container any more.
    """
    out = machine.enter("/usr/bin/python3", "-c", LOOK_AT_GET).stdout
    if not out:
        raise LabError(f"no get container on {machine.name} to look at")
    return json.loads(out)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.replace("\r", "").splitlines())
