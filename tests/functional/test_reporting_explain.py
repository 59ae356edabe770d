# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-explain over what the installed runtime leaves: real containerd and runc, store and log."""

import json
import os
import sys

import pytest

from tests.functional.containerd_worker import NEEDS, ROOT, UUIDS, worker_in_a_namespace
from tests.functional.lease_site import act, site

pytestmark = NEEDS

EXPLAIN = """
import json, sys
from actions import gpu_explain
print(json.dumps(gpu_explain.run("worker/0", {"name": sys.argv[1], "since": "1h"})))
"""
# What the GPU health service does with the leases that it sees: it keeps usage records of them.
TURN = """
import time
from gpu_agent.health import lease_reader
from gpu_agent.model.observations import Moment
from gpu_agent.reporting.receipts.ledger import Ledger
now = time.clock_gettime(time.CLOCK_BOOTTIME)
held = lease_reader.holdings("/run/gpu-ci/leases")
Ledger().turn(Moment(now, time.time(), (), holdings=held), ())
"""


@pytest.fixture(scope="module")
def started():
    with worker_in_a_namespace() as worker:
        worker.charm(1)
        worker.start()
        yield worker


@pytest.fixture
def one(started):
    yield from site(started, 1, wait_timeout=1)


def inside(one, code, *words):
    path = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "PATH": os.environ["PATH"]}
    done = one.worker.inside(sys.executable, "-c", code, *words, env=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(one, name):
    results = json.loads(inside(one, EXPLAIN, name))
    assert all(len(line) <= 96 for text in results.values() for line in text.splitlines())
    return {key: " ".join(text.split()) for key, text in results.items()}


def test_a_granted_and_a_refused_task(one):
    assert one.create("granted-1").returncode == 0
    one.step("granted-1")
    assert one.create("refused-1").returncode != 0
    inside(one, TURN)
    text = explained(one, "refused-1")["report"]
    assert "Container refused-1 CI step" in text
    assert "task requests 1 GPU Decided" in text
    assert "refused" in text
    assert "after waiting 1 s" in text
    assert "Held then GPU 1: container granted-1, 20" in text
    assert text.endswith("Ended it never had a GPU")
    text = explained(one, "granted-")["report"]
    assert f"granted: GPU 1 ({UUIDS[1]})" in text
    assert "Holds GPU 1 since 20" in text

    assert act(one.worker, "reclaim", "gpu-1", "it hangs", "force")["state"]
    inside(one, TURN)
    text = explained(one, "granted-1")["report"]
    assert f"gpu-reclaim: {UUIDS[1]}: it hangs; held GPU 1 for" in text
    assert f": gpu-reclaim: {UUIDS[1]}: it hangs" in text.partition("Ended by ")[2]
    assert "granted-1" in explained(one, "refused-1")["report"], "it is in the usage records"


def test_one_that_waits_and_one_that_is_not_known(one):
    one.worker.charm(1, wait_timeout=60)
    one.create("holder-1")
    one.step("holder-1")
    one.wait("waiter-1")
    text = explained(one, "waiter-1")["report"]
    assert "position 1 in the queue Held now GPU 1: container holder-1, 20" in text
    nothing = explained(one, "main/train/fit/12")
    assert nothing["state"] == "nothing found"
    assert "decision log (/var/log/gpu-ci/oci.log): back to 20" in nothing["searched"]
