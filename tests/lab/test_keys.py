# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Both keys rotated by their actions on the packed charm, under builds long and short."""

import contextlib
import json
import os
import threading
import time

from tests.lab.site import READY

LONG = "sleep 27182 || :; echo finished"
SHORT = "sleep 1; echo finished"
# So many short ones come to their end before, between and after what is done meanwhile; each one
# costs more than a second of a processor.
ENOUGH, AT_ONCE = (3, 2) if "GPUCI_SOAK" in os.environ else (1, 1)


def act(site, name, unit, **params):
    """Results of an action, once all that follows from it has come to rest."""
    action = site.lab.model.run_action(unit, name, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    return json.loads(row["results"]), row["message"]


def builds(site):
    """Status by number, as web has it; a fly that watches one may have lost its web."""
    deadline = time.monotonic() + 60
    while (listed := site.fly.run("builds", "--json", "-c", "500")).returncode:
        assert time.monotonic() < deadline, listed.stderr
        time.sleep(0.5)
    return {build["id"]: build["status"] for build in json.loads(listed.stdout)}


@contextlib.contextmanager
def short_builds(site):
    """AT_ONCE at a time, one after the other. Gives a wait for some more; none may be lost."""
    first, over, ended = max(builds(site), default=0), threading.Event(), []

    def work():
        command = site.fly.task(["sh", "-c", SHORT], ["gpu"], {"GPU_COUNT": "0"})
        while not over.is_set():
            done = site.fly.run(*command)
            # After a restart of web the build does not exist yet.
            if done.returncode:
                time.sleep(0.2)
            else:
                ended.append(done)

    def wait():
        deadline, before = time.monotonic() + 120, len(ended)
        while len(ended) < before + ENOUGH:
            assert time.monotonic() < deadline, builds(site)
            time.sleep(0.2)

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        yield wait
    finally:
        over.set()
        for thread in threads:
            thread.join()
    deadline = time.monotonic() + 120
    while True:
        found = {number: status for number, status in builds(site).items() if number > first}
        if not {"pending", "started"} & {*found.values()}:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    assert {*found.values()} == {"succeeded"}, found


def test_both_keys_are_rotated_under_builds_and_none_is_lost(site):
    authorized = "cat /etc/concourse/keys/authorized_worker_keys"
    host_key = "cat /etc/concourse/keys/tsa_host_key.pub"
    with short_builds(site) as some_end:
        running = site.start_task(LONG, params={"GPU_COUNT": "1"})
        before, known = site.sh(authorized, "web/0"), site.sh(host_key)
        some_end()
        results, why = act(site, "rotate-worker-key", "worker/0")
        assert results["state"] == "begun", why
        after = site.sh(authorized, "web/0")
        assert len(after.splitlines()) == 1
        assert after != before
        assert site.status() == READY
        some_end()

        results, why = act(site, "rotate-tsa-key", "web/0")
        assert results["waits-for"] == "worker/0", why
        assert site.sh(host_key) != known
        assert site.sh(host_key).strip() == results["next-public-key"]
        assert site.published("web/0", "tsa-public-key") == {results["next-public-key"]}
        assert site.status() == READY
        site.worker("lab-worker-0", 60)
        some_end()
        assert [worker["state"] for worker in site.fly.workers()] == ["running"]
        site.sh("pkill -xf 'sleep 27182'")
        running.communicate(timeout=90)
