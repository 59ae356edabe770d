# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run beside Concourse's tasks, by the packed charm: one line for both, and no trace after."""

import pytest

from tests.lab.leases import Tasks, holders, waiting

pytestmark = pytest.mark.usefixtures("untested")

ALICE = (
    "systemd-run --quiet --collect --unit=alice-{0} -p User=alice -p KillMode=process "
    "-p StandardError=truncate:/srv/alice-{0} /usr/local/bin/gpu-run {1}"
)
TRACES = (
    "ls -d /usr/local/bin/gpu-run /usr/local/share/man/man1/gpu-run.1 /run/gpu-run.sock "
    "/etc/systemd/system/gpu-ci-run* 2>/dev/null; systemctl list-units --all --plain --no-legend "
    "'gpu-ci-run*' 'gpurun.slice' 'system-gpu*'; true"
)


@pytest.fixture
def shared(site):
    """A worker whose GPUs alice may have; as deployed afterwards."""
    site.configure(gpu_run_group="gpu-users")
    yield site
    site.sh("systemctl stop 'alice-*' 'gpu-run-*.scope' 2>/dev/null; true")
    site.configure(reset=("gpu-run-group",), enable_gpu="true")
    site.wait_for_tag("gpu-count=2")


def test_people_and_tasks_wait_in_one_line(shared):
    state, text = shared.status()
    assert state == "blocked"
    assert text.startswith("Group 'gpu-users' of gpu-run-group does not exist on this machine: ")
    shared.sh("groupadd --system gpu-users; useradd -m -G gpu-users alice")
    shared.lab.model.update_status("worker/0")
    shared.lab.settle()
    assert shared.status()[0] == "active"
    shared.sh(ALICE.format("one", "sleep 4321"))
    shared.sh("for i in $(seq 300); do pgrep -f '^sleep 4321' && exit; sleep 0.2; done; exit 1")
    (unit,) = [name for name in holders(shared) if name.startswith("gpu-run-")]
    tasks = Tasks(shared)
    try:
        both = tasks.start("both", GPU_COUNT="2")
        assert [one["count"] for one in waiting(shared, 1)] == [2]
        shared.sh(f"systemctl stop {unit}")
        assert both.cards() == [0, 1]
        shared.sh(ALICE.format("two", "touch /tmp/alice-had-one"))
        shared.sh("for i in $(seq 300); do grep -q queue /srv/alice-two && exit; sleep 0.2; done")
        said = shared.sh("cat /srv/alice-two")
        assert said.startswith("gpu-run: waiting for 1 GPU: position 1 in the queue; CI task ")
        assert both.end() == 0
        shared.sh(
            "for i in $(seq 300); do [ -e /tmp/alice-had-one ] && exit; sleep 0.2; done; exit 1"
        )
    finally:
        tasks.end()
    shared.configure(enable_gpu="false")
    assert shared.sh(TRACES) == ""
