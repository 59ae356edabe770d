# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Both keys rotated, and web's view of its worker, in a machine: under a task that goes on."""

from ci.concourse import rsa_keys as keys
from relations.worker_view import digest
from tests import once
from tests.functional import test_concourse_machine
from tests.functional.ci_host import HOST_KEY
from tests.functional.concourse_machine import NEEDS
from tests.functional.test_concourse_machine import TAGS, start_task, until

pytestmark = NEEDS
host, installed = test_concourse_machine.host, test_concourse_machine.installed
running = test_concourse_machine.running


def test_both_keys_are_rotated_under_a_task_that_goes_on(running):
    start_task(running, "rotated")
    told = running.call(
        "tests.functional.ci_driver.new_worker_key", running.worker_plan(), say=False
    )
    assert told["result"] == [True, True, True]
    new = once.rsa_key(3)
    both = [HOST_KEY, keys.public_key_line(new)]
    running.worker(tsa_public_keys=both)
    shows = running.web_plan()
    shows["secrets"]["tsa_host_key"] = new
    assert running.call("ci.concourse.web.web.apply", shows)["result"] is True
    running.worker(tsa_public_keys=both[1:])
    until(lambda: running.call("ci.concourse.worker.worker.is_connected", say=False)["result"])

    def seen():
        name = "tests.functional.ci_driver.seen"
        return running.call(name, "worker-0", list(TAGS), say=False)["result"]

    until(lambda: seen() == [{"state": "running", "tags": digest(TAGS)}], seen)
    log = "/srv/rotated.log"
    ticks = running.machine.read(log).count("tick")
    until(
        lambda: running.machine.read(log).count("tick") > ticks, lambda: running.machine.read(log)
    )
    running.sh("for init in $(pgrep -x gdn-init); do touch /proc/$init/root/go-rotated; done")
    until(lambda: "succeeded" in running.machine.read(log), lambda: running.machine.read(log))

    def pruned():
        name = "tests.functional.ci_driver.pruned"
        return running.call(name, ["worker-0"], say=False)["result"]

    assert pruned() == ["worker-0"], "web forgets none that runs"
    running.sh("systemctl stop concourse-worker")
    until(lambda: seen() == [{"state": "stalled", "tags": digest(TAGS)}], seen, seconds=150)
    assert pruned() == []
    assert seen() == [{"state": "absent", "tags": ""}]
