# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Leases of the real GPUs, in a store of this step's own."""

import collections.abc
import contextlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from gpu_runtime import lease_manager, policy
from gpu_runtime.decision_log import Decision
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.refusal import Refused
from prove_gpu import rig
from prove_gpu.proof import Proof

_REQUEST = pathlib.Path(__file__).parents[1] / "lease_request.py"


def leases(proof: Proof) -> None:
    """Let two processes ask for all GPUs, end the first, and see the second get them."""
    found = rig.inventory()
    nodes = [f"/dev/nvidia{gpu.minor}" for gpu in found.gpus]
    # Before a GPU goes to the next holder, what still has it open without a right is ended.
    rig.check_unused(nodes)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path, made = rig.write_policy(folder, found)
        ids = [device.id for device in made.devices]
        proof.equal(
            "devices of the policy", [uuid for gpu in found.gpus for uuid in gpu.devices], ids
        )
        store = Store(f"{folder}/leases")
        _hand_over(proof, folder, store, path, ids)
        _refusals(proof, store, path, len(ids))
        if len(ids) > 1:
            _side_by_side(proof, folder, path, ids)
        else:
            proof.left_out("two holders side by side", "there is one device only")


def _hand_over(
    proof: Proof, folder: pathlib.Path, store: Store, path: pathlib.Path, ids: list[str]
) -> None:
    with _request(folder, path, "prove-first", len(ids)) as first:
        granted = _answer(first)
        proof.equal("the first request gets all", ids, granted.get("granted"))
        visible = granted.get("environment", {}).get("NVIDIA_VISIBLE_DEVICES")
        proof.equal("its NVIDIA_VISIBLE_DEVICES", ",".join(ids), visible)
        proof.figure("decision of the first request", granted.get("decided_ms"), "ms")
        with _request(folder, path, "prove-second", len(ids)) as second:
            queued = rig.until(lambda: bool(store.read().waiters), 10)
            proof.check("the second request waits", queued is not None, "in the queue", queued)
            time.sleep(1)
            proof.equal("it still waits after a second", None, second.poll())
            proof.equal("holders meanwhile", ["prove-first"], [*store.read().holders])
            first.kill()
            first.wait(10)
            ended = time.monotonic()
            granted = _answer(second)
            passed = time.monotonic() - ended
            proof.equal("the second request gets all", ids, granted.get("granted"))
            # A waiting request looks every quarter of a second, and then searches all processes.
            proof.check("seconds from the end of the first", passed < 10, "less than 10", passed)
            proof.figure("from the end of a lease to the next", round(passed * 1000), "ms")
            proof.check(
                "its wait in ms",
                granted.get("waited_ms", 0) >= 1000,
                "at least 1000",
                granted.get("waited_ms"),
            )
            proof.equal("holders then", ["prove-second"], [*store.read().holders])
            proof.equal("requests that wait then", 0, len(store.read().waiters))
            second.kill()
            second.wait(10)
    over = lease_manager.give_back(store, Host(), "prove-second")
    proof.equal("the lease can be given back", True, over)
    proof.equal("holders at the end", [], [*store.read().holders])


def _refusals(proof: Proof, store: Store, path: pathlib.Path, count: int) -> None:
    made = policy.read(str(path))
    if made is None:
        raise ValueError("the policy names no GPU")
    decision = Decision("prove-more")
    decision.asked = count + 1
    request = lease_manager.Request("prove-more", "", "")
    said = "granted"
    try:
        lease_manager.acquire(store, Host(), itertools.repeat(made), request, decision)
    except Refused as refusal:
        said = refusal.code
    proof.equal("one more than there are", "too-few-gpus", said)
    proof.equal("holders after the refusal", [], [*store.read().holders])


def _side_by_side(proof: Proof, folder: pathlib.Path, path: pathlib.Path, ids: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        found = [
            _answer(stack.enter_context(_request(folder, path, f"prove-{place}", 1)))
            for place in range(len(ids))
        ]
    given = [uuid for one in found for uuid in one.get("granted", [])]
    proof.equal("as many holders as devices, each with its own", sorted(ids), sorted(given))


@contextlib.contextmanager
def _request(
    folder: pathlib.Path, path: pathlib.Path, name: str, count: int
) -> collections.abc.Generator[subprocess.Popen[str]]:
    """Start a process that requests devices, says what it got, and keeps them."""
    lib = rig.TREE / "lib"
    argv = [sys.executable, "-I", "-S", str(_REQUEST), str(lib), str(folder), str(path), name]
    with subprocess.Popen([*argv, str(count)], stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _answer(child: subprocess.Popen[str]) -> dict:
    line = child.stdout.readline() if child.stdout else ""
    return json.loads(line) if line else {}
