# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Both keys rotated by their actions on the packed charm, under a build that goes on."""

import json

from tests.lab.site import READY


def act(site, name, unit, **params):
    """Results of an action, once all that follows from it has come to rest."""
    action = site.lab.model.run_action(unit, name, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    return json.loads(row["results"]), row["message"]


def test_both_keys_are_rotated_under_a_build(site):
    authorized = "cat /etc/concourse/keys/authorized_worker_keys"
    host_key = "cat /etc/concourse/keys/tsa_host_key.pub"
    running = site.start_task("sleep 45; echo finished")
    before, known = site.sh(authorized, "web/0"), site.sh(host_key)
    results, why = act(site, "rotate-worker-key", "worker/0")
    assert results["state"] == "begun", why
    after = site.sh(authorized, "web/0")
    assert len(after.splitlines()) == 1
    assert after != before
    assert site.status() == READY

    results, why = act(site, "rotate-tsa-key", "web/0")
    assert results["waits-for"] == "worker/0", why
    assert site.sh(host_key) != known
    assert site.sh(host_key).strip() == results["next-public-key"]
    assert site.published("web/0", "tsa-public-key") == {results["next-public-key"]}
    assert site.status() == READY
    site.worker("lab-worker-0", 60)
    output, _ = running.communicate(timeout=300)
    assert running.returncode == 0, output
    assert "finished" in output
