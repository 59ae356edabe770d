# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The self-test's levels quick and compute, as far as they need no systemd and no container."""

import collections.abc
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from gpu_agent.availability import known_gpus
from gpu_agent.gpu.vendors import registry
from gpu_agent.gpu.vendors.nvidia import xid
from gpu_agent.model.inventory import Inventory
from gpu_selftest.check import Check, Outcome, Result
from gpu_selftest.compute import answers, level
from gpu_selftest.compute.baseline import Baseline
from gpu_selftest.compute.environment import Environment
from gpu_selftest.compute.equipment import Equipment
from gpu_selftest.compute.measurements import Findings, Target
from gpu_selftest.quick import ci_checks, gpu_checks, host_checks
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import Pulse
from machine import process
from prove_gpu import rig
from prove_gpu.proof import NotRunError, Proof

# What a Python says of the packages that level compute uses.
_ASK = """
import importlib.util, json
found = {}
if importlib.util.find_spec("torch"):
    import torch
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("numpy", "onnx", "onnxruntime"):
        found[name] = bool(importlib.util.find_spec(name))
print(json.dumps(found))
"""
# Importing PyTorch may read gigabytes.
_IMPORT = 120


def quick(proof: Proof) -> None:
    """Run all quick checks, without those of a CI system, on a machine without the GPU runtime."""
    found = rig.inventory()
    # A known vulnerability of the toolkit here is not a fault of the checks.
    settings = Settings(
        unit="prove/0", vendor="nvidia", gpus=found.gpus, allow_vulnerable_toolkit=True
    )
    look = dataclasses.replace(host_checks.look(settings), known=(), damage="")
    with tempfile.TemporaryDirectory() as name:
        # The checks learn which GPUs are here. No file of a worker is written.
        known_gpus.PATH = pathlib.Path(name, "inventory.json")  # type: ignore[misc]
        results = host_checks.run(settings, look, ci_checks.Answer())
        known = known_gpus.read(known_gpus.PATH)
    uuids = {gpu.uuid for gpu in found.gpus}
    proof.equal("GPUs that are known from now on", uuids, {gpu.uuid for gpu in known})
    healths = registry.find(found.vendor).health(uuids)
    results += gpu_checks.run(settings, healths, xid.read(), found.gpus)
    told = {(one.check, one.gpu) for one in results}
    expected = {(check.id, uuid) for check in gpu_checks.CHECKS for uuid in uuids}
    proof.equal("checks of the GPUs without a result", set(), expected - told)
    expected = {check.id for check in host_checks.CHECKS} - {ci_checks.CHECK.id}
    without = expected - {one.check for one in results}
    proof.equal("checks of the machine without a result", set(), without)
    if look.machine.toolkit is None:
        proof.left_out(host_checks.TOOLKIT.id, "this machine has no nvidia-container-runtime")
        results = [one for one in results if one.check != host_checks.TOOLKIT.id]
    _judge(proof, results, found)


def _judge(proof: Proof, results: collections.abc.Iterable[Result], found: Inventory) -> None:
    """Take a result that passed, warned or does not apply as fine; list what it says."""
    index = {gpu.uuid: f"GPU {gpu.index}, " for gpu in found.gpus}
    for one in results:
        name = f"{index.get(one.gpu, '')}{one.check}"
        if one.outcome is Outcome.NOT_RUN:
            proof.left_out(name, one.text)
            continue
        fine = one.outcome is not Outcome.FAILED
        limit = f" ({one.threshold})" if one.threshold else ""
        proof.check(name, fine, f"no failure{limit}", f"{one.outcome.value}: {one.text}")
        if isinstance(one.value, int | float):
            proof.figure(name, one.value, one.unit)


def compute(proof: Proof) -> None:
    """Run PyTorch and ONNX Runtime of this machine's Python on each GPU, as level compute does.

    The level's own environment comes from a package index, which this machine can't reach.
    """
    found = rig.inventory()
    python, about = _python()
    for name in ("torch", "cuda"):
        proof.figure({"torch": "PyTorch", "cuda": "built for CUDA"}[name], str(about[name]))
    ends = float(os.environ["PROVE_STEP_ENDS"])
    settings = Settings(unit="prove/0", vendor="nvidia", gpus=found.gpus)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        # No file of a worker is read or written.
        equipment = Equipment(home=folder, clock=functools.partial(Pulse, home=folder))
        findings = Findings("cuda", settings.unit, Baseline(folder))
        made = Environment(folder / "python", f"torch-{about['torch']}")
        _wrap(python, pathlib.Path(made.python))
        site = level._Site(settings, made, "cuda", made.key, print, equipment)
        targets = [Target(gpu, uuid) for gpu in found.gpus for uuid in gpu.devices]
        longest = 0.0
        for target in targets:
            began = time.monotonic()
            if began + 1.2 * longest > ends:
                proof.left_out(target.name, "there is no time left for it")
                continue
            level._work(site, target, findings)
            longest = max(longest, time.monotonic() - began)
        proof.figure("the slowest GPU's checks", round(longest, 1), "s")
        findings.judge(made.key)
        whole = [target for target in targets if target.device == target.uuid]
        if len(whole) > 1:
            _peers(proof, site, whole)
        else:
            proof.left_out("copies between GPUs", "there is no other whole GPU")
    results = findings.results
    missing = [name for name in ("numpy", "onnx", "onnxruntime") if not about[name]]
    if missing:
        proof.left_out(answers.ONNX.id, f"this Python has no {', '.join(missing)}")
        results = [one for one in results if one.check != answers.ONNX.id]
    _judge(proof, results, found)
    ran = {one.check for one in results if one.outcome in (Outcome.PASSED, Outcome.WARNING)}
    for check in (answers.RESULTS, answers.COPY, answers.HOST, answers.MEMORY):
        proof.check(
            f"{check.id} has a result", check.id in ran, "passed or warning", _of(check, results)
        )


def _of(check: Check, results: list[Result]) -> str:
    return next((one.outcome.value for one in results if one.check == check.id), "none")


def _peers(proof: Proof, site: level._Site, whole: list[Target]) -> None:
    pairs = level._ask(site, "peer", whole)["pairs"]
    wrong = {f"{pair['from']} to {pair['to']}": pair["wrong"] for pair in pairs if pair["wrong"]}
    proof.equal("wrong words in copies between GPUs", {}, wrong)
    slowest = min(pair["gbps"] for pair in pairs)
    proof.figure("slowest copy between two GPUs", slowest, "GB/s")


def _python() -> tuple[str, dict[str, object]]:
    """Return an interpreter whose PyTorch is built for CUDA, and what it has.

    Raises:
        NotRunError: there is none.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    names = [shutil.which("python3", path=folder) for folder in folders]
    seen: list[str] = []
    for python in dict.fromkeys([sys.executable, *filter(None, names)]):
        try:
            said = process.run([python, "-I", "-c", _ASK], timeout=_IMPORT, env=_variables())
            about = json.loads(said.stdout.splitlines()[-1])
        except process.CommandError as error:
            seen.append(str(error))
            continue
        if about.get("cuda"):
            return python, about
        seen.append(f"{python}: {about or 'no PyTorch'}")
    raise NotRunError(f"no Python on PATH has a PyTorch for CUDA: {'; '.join(seen)}")


def _variables() -> dict[str, str]:
    """Return where this machine has the driver's libraries, if that is not the loader's path."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": path} if path else {}


def _wrap(python: str, path: pathlib.Path) -> None:
    """Make a program of that path which is this interpreter: a link would lose its packages."""
    path.parent.mkdir(parents=True)
    lines = [f"export {name}='{value}'" for name, value in _variables().items()]
    path.write_text("\n".join(["#!/bin/sh", *lines, f"exec '{python}' \"$@\"", ""]))
    path.chmod(0o755)
