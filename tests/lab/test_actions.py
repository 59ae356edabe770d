# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The actions on leases, and GPUs that are in use outside CI, on the packed charm."""

import json

import pytest

from tests.lab import leases
from tests.lab.site import READY


@pytest.fixture
def as_deployed(site):
    """Two unused GPUs; the same again afterwards."""
    yield site
    site.gpus("set", "1", "processes=", "memory-used-mib=")
    assert site.status() == READY


def act(site, action, /, unit="worker/0", **params):
    """Results of an action, and why it failed if it did."""
    number = site.lab.model.run_action(unit, action, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", number)
    return json.loads(row["results"]), row["message"]


def test_a_gpu_that_others_use_is_kept_from_tasks_until_they_are_gone(as_deployed):
    site = as_deployed
    tags = site.tags()
    site.gpus("set", "1", "processes=4194303 900")
    external = "Worker ready (GPU: 1x NVIDIA, 1 in use outside CI: GPU 1, self-test passed)"
    assert site.status() == ("active", external)
    assert site.tags() == tags
    results, _ = act(site, "gpu-leases")
    assert results["free"] == "1 of 2"
    assert results["gpu-1"].startswith("in use outside CI: pid 4194303")
    done = site.task("true", params={"GPU_COUNT": "2"})
    assert done.returncode != 0
    assert "in use outside CI" in done.stdout
    site.gpus("set", "1", "processes=", "memory-used-mib=12600")
    assert site.status() == ("active", external)
    site.gpus("set", "1", "memory-used-mib=")
    assert site.status() == READY
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"


def test_a_gpu_is_released_by_force_alone_while_a_task_uses_it(as_deployed):
    site = as_deployed
    running = site.start_task("sleep 500")
    results, _ = act(site, "gpu-leases")
    (key,) = [key for key in ("gpu-0", "gpu-1") if results[key].startswith("leased")]
    assert results[key].endswith("runs: task")
    assert results["free"] == "1 of 2"
    _, message = act(site, "gpu-reclaim", gpu=key, reason="hangs")
    assert "is in use by container" in message
    results, message = act(site, "gpu-reclaim", gpu=key, reason="it hangs", force="true")
    assert results["was"].startswith("held by container "), message
    output, _ = running.communicate(timeout=60)
    assert running.returncode != 0, output
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"
    assert ": it hangs" in site.sh("cat /var/log/gpu-ci/oci.log")


def test_a_refused_and_a_granted_task_are_explained(as_deployed):
    site = as_deployed
    running = site.start_task("sleep 500")
    seen = json.loads(act(site, "gpu-leases", format="json")[0]["json"])
    (device,) = [one for one in seen["devices"] if one["state"] == "leased"]
    (holder,) = [one for one in device["containers"] if seen["containers"][one]["in_use"]]
    try:
        assert site.task("true", params={"GPU_COUNT": "3"}).returncode != 0
        refused = leases.journal(site)[-1]
        assert refused["granted"] == []
        results, message = act(site, "gpu-explain", name=refused["container"])
        assert message == ""
        text = " ".join(results["report"].split())
        assert "task requests 3 GPUs" in text
        assert f"Held then GPU {device['index']}: container {holder}" in text
        results, message = act(site, "gpu-explain", name=holder[:13])
        text = " ".join(results["report"].split())
        assert "CI step" in text
        assert f"Holds GPU {device['index']} since 20" in text
    finally:
        params = {"gpu": device["key"], "reason": "it hangs", "force": "true"}
        assert act(site, "gpu-reclaim", **params)[1] == ""
        running.communicate(timeout=60)
    text = " ".join(act(site, "gpu-explain", name=holder)[0]["report"].split())
    assert ": it hangs" in text.partition("Ended by ")[2]
    results, message = act(site, "gpu-explain", name="no-team/no-pipeline/no-job/1")
    assert (results["state"], message) == ("nothing found", "")
    assert refused["container"] in results["refused-tasks"]


def test_actions_answer_while_an_option_of_another_part_is_wrong(as_deployed):
    site = as_deployed
    held, _ = act(site, "gpu-leases")
    admin, _ = act(site, "get-admin-password", unit="web/0")
    try:
        for app in ("web", "worker"):
            site.configure(app, external_url="ci.example.com")
            assert site.status(f"{app}/0")[1].startswith(
                "external-url 'ci.example.com' is not a URL"
            )
        now, message = act(site, "gpu-leases")
        # How long ago a container was used changes meanwhile.
        assert (now.keys(), message) == (held.keys(), "")
        assert act(site, "gpu-inventory")[0]["gpu-1"].endswith("\n  for tasks")
        assert act(site, "get-admin-password", unit="web/0") == (admin, "")
    finally:
        for app in ("web", "worker"):
            site.configure(app, reset=("external-url",))


def test_lost_keys_of_web_are_replaced_by_the_action_alone(as_deployed):
    site = as_deployed
    before, _ = act(site, "get-admin-password", unit="web/0")
    for table, column in (("secret_revision", "secret"), ("secret", "id")):
        sql = f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM secret WHERE owner = 'web')"
        site.lab.store.do(sql)
    site.lab.model.update_status("web/0")
    site.lab.settle()
    kind, message = site.status("web/0")
    assert (kind, "juju run web/leader replace-web-keys" in message) == ("blocked", True), message
    assert site.task("true").returncode == 0, "running tasks go on"
    assert act(site, "get-admin-password", unit="web/0") == ({}, message)
    assert act(site, "replace-web-keys", unit="web/0")[1] == ""
    after, _ = act(site, "get-admin-password", unit="web/0")
    assert after["password"] != before["password"]
    assert site.status("web/0") == ("active", "Web ready")
    site.fly.login()
    site.worker("lab-worker-0", 60)
    assert site.task("true").returncode == 0
