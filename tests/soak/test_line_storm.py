# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Tasks, gpu-run, podman and Docker at once on a lab's worker with two GPUs, some of them killed.

With GPUCI_SOAK 200 of them; else a short form. GPUCI_STORM_SEED repeats a storm. The tasks are of
the stand-in for Concourse, or of the real one, by GPUCI_CONCOURSE_TARBALL.
"""

import collections
import os
import re
import time

import pytest

from tests.functional import engine_machine
from tests.soak import line_machine

SOAK = "GPUCI_SOAK" in os.environ
COUNT, SECONDS = (200, 3000) if SOAK else (20, 400)

pytestmark = pytest.mark.skipif(
    not engine_machine.HAS_ENGINES,
    reason="there is no podman and no dockerd: scripts/setup test could not download them",
)


@pytest.fixture(scope="module")
def line(site):
    with line_machine.furnished(site) as found:
        yield found


def test_all_at_once(line):
    seed = int(os.environ.get("GPUCI_STORM_SEED") or time.time())
    print(f"seed {seed}")
    told = line.storm(COUNT, seed, SECONDS)
    had = had_by_name(line)
    print(
        f"{told['looks']} looks, {told['seen']} times who is who, {len(had)} of {COUNT} had "
        f"GPUs, {told['seconds']} s, shot: {told['shot']}"
    )
    assert line.sh(f"cat {line_machine.HELD}/faults") == "", "a GPU was held twice"
    assert told["faults"] == [], "somebody waited although there was a GPU for it, or is unknown"
    assert told["settled"], told["left"]
    for one in told["everybody"]:
        check(one, had.get(one["name"]), told)
    check_shot(told)
    check_words(told)


def had_by_name(line):
    """Which GPUs each could open from inside, as it says itself."""
    lines = line.sh(f"cat {line_machine.HELD}/log").splitlines()
    names = [entry.split()[0] for entry in lines]
    assert max(collections.Counter(names).values()) == 1
    return dict(entry.split() for entry in lines)


def check(one, had, told):
    """Who was left alone had its GPUs, who was killed had them or none; nobody had others."""
    is_shot = any(one["name"] in words for words in told["shot"])
    # gpu-run has one name for all calls of a command: check_shot() counts them.
    is_shot |= one["kind"] == "gpu-run" and any("gpu-run" in words for words in told["shot"])
    if not (one["killed"] or is_shot):
        assert one["status"] == 0, one
        assert had, one
    if had:
        assert len(had.replace("-", "")) == one["count"], (one, had)
        assert not one["named"] or had == str(one["named"][0]), (one, had)
        # gpu-leases has said the same.
        assert told["leased"].get(one["name"], had) == had, (one, had)


def check_shot(told):
    """No more calls of gpu-run failed than were killed."""
    of_it = [one for one in told["everybody"] if one["kind"] == "gpu-run" and not one["killed"]]
    failed = [one for one in of_it if one["status"]]
    assert len(failed) <= sum("gpu-run" in words for words in told["shot"]), failed


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
        f"cd {line_machine.HELD}; : >faults; : >log; podman run -d --rm -e GPU_COUNT=2 "
        f"-v {line_machine.HELD}:/held -v /srv/storm/bin:/storm:ro lab.test/plain "
        "/storm/hold /held inside 60000 0; "
        "for i in $(seq 300); do grep -q inside log && exit; sleep 0.2; done; exit 1"
    )
    line.sh(f"/srv/storm/bin/hold {line_machine.HELD} beside 1 0")
    faults = line.sh(f"cat {line_machine.HELD}/faults; podman rm -f -t 0 -a >/dev/null")
    assert faults == "GPU 0 twice: beside has it too\nGPU 1 twice: beside has it too\n"


def test_options_that_are_taken_back_leave_no_trace(line):
    assert line.engines() != line.before
    line.leave()
    assert line.engines() == line.before
    gone = "/usr/local/bin/gpu-run /run/gpu-run.sock /opt/gpu-ci/engines /etc/gpu-ci/engines"
    assert line.sh(f"ls -d {gone} 2>/dev/null; true") == ""
    assert line.sh("systemctl list-unit-files 'gpu-ci-run*' --no-legend; true") == ""
    # Both engines go on without us.
    for engine in ("podman", "docker"):
        line.sh(f"{engine} run --rm lab.test/plain true")
