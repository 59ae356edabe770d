# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Tasks, gpu-run, podman and Docker at once on one machine with two GPUs, some of them killed.

With GPUCI_SOAK 200 of them; else a short form. GPUCI_STORM_SEED repeats a storm.
"""

import collections
import os
import re
import time

import pytest

from tests.functional import engine_machine, selftest_machine
from tests.soak import line_machine

SOAK = "GPUCI_SOAK" in os.environ
COUNT, SECONDS = (200, 1800) if SOAK else (20, 400)

pytestmark = [*engine_machine.NEEDS, *selftest_machine.NEEDS]


@pytest.fixture(scope="module")
def line():
    with line_machine.started() as found:
        yield found


def test_all_at_once(line):
    seed = int(os.environ.get("GPUCI_STORM_SEED") or time.time())
    print(f"seed {seed}")
    told = line.storm(COUNT, seed, SECONDS)
    had = had_by_name(line)
    print(f"{told['looks']} looks, {len(had)} of {COUNT} had GPUs, shot: {told['shot']}")
    assert line.sh("cat /srv/storm/held/faults").stdout == "", "a GPU was held twice"
    assert told["faults"] == [], "somebody waited although there was a GPU for it"
    assert told["settled"], told["left"]
    for one in told["everybody"]:
        check(one, had.get(one["name"]), told["shot"])
    check_words(told)


def had_by_name(line):
    """Which GPUs each could open from inside, as it says itself."""
    lines = line.sh("cat /srv/storm/held/log").stdout.splitlines()
    names = [entry.split()[0] for entry in lines]
    assert max(collections.Counter(names).values()) == 1
    return dict(entry.split() for entry in lines)


def check(one, had, shot):
    """Who was left alone had its GPUs, who was killed had them or none; nobody had others."""
    is_shot = any(one["name"] in words or one["handle"] in words for words in shot)
    # gpu-run has one name for all calls of a command.
    is_shot |= one["kind"] == "gpu-run" and any("gpu-run" in words for words in shot)
    if not (one["killed"] or is_shot):
        assert one["status"] == 0, (one["said"], one)
        assert had, one
    if had:
        assert len(had.replace("-", "")) == one["count"], (one, had)
        assert not one["named"] or had == str(one["named"][0]), (one, had)


def check_words(told):
    """gpu-leases has named each kind in its engine's words."""
    words = [f"{kind}: {who}" for kind, who in told["who"]]
    for form in (
        r"step: container [0-9a-f-]{36}",
        r"job: gpu-run of alice: hold.*",
        r'container: podman container "storm-\d+-podman"',
        r'container: docker container "storm-\d+-docker"',
    ):
        assert any(re.fullmatch(form, one) for one in words), (form, words)


def test_a_gpu_that_is_held_twice_is_seen(line):
    """Else the storm would prove nothing: root on the machine opens what others have."""
    line.sh(
        "cd /srv/storm; : >held/faults; : >held/log; podman --runtime=gpu-ci run -d --rm -e "
        "GPU_COUNT=2 -v /srv/storm/held:/held -v /srv/storm/bin:/storm:ro lab.test/plain "
        "/storm/hold /held inside 60000 0"
    )
    line.box.wait("grep -q inside /srv/storm/held/log")
    line.sh("/srv/storm/bin/hold /srv/storm/held beside 1 0")
    faults = line.sh("cat /srv/storm/held/faults; podman rm -f -t 0 -a >/dev/null").stdout
    assert faults == "GPU 0 twice: beside has it too\nGPU 1 twice: beside has it too\n"


def test_removal_leaves_no_trace(line):
    assert line.engines() != line.before
    line.remove()
    assert line.engines() == line.before
    gone = "/usr/local/bin/gpu-run /opt/gpu-ci/engines /opt/gpu-ci/bin /etc/gpu-ci/policy.json"
    assert line.sh(f"ls -d {gone} 2>/dev/null", check=False).stdout == ""
    units = line.sh("systemctl list-unit-files 'gpu-ci*' --no-legend", check=False).stdout
    assert units == ""
    # Both engines go on without us.
    for engine in ("podman", "docker"):
        line.sh(f"{engine} run --rm lab.test/plain true")
