# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The actions on leases, and GPUs that somebody outside CI uses, on the packed charm."""

import json

import pytest

from tests.lab.site import READY


@pytest.fixture
def as_deployed(site):
    """Two GPUs that nobody uses; the same again afterwards."""
    yield site
    site.gpus("set", "1", "processes=", "memory-used-mib=")
    assert site.status() == READY


def act(site, name, unit="worker/0", **params):
    """Results of an action, and why it failed if it did."""
    action = site.lab.model.run_action(unit, name, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", action)
    return json.loads(row["results"]), row["message"]


def test_a_gpu_that_others_use_is_cordoned_until_they_are_gone(as_deployed):
    site = as_deployed
    tags = site.tags()
    site.gpus("set", "1", "processes=4194303 900")
    cordoned = (
        "Worker ready (GPU: 1x NVIDIA, 1 cordoned: GPU 1 in use outside CI, self-test passed)"
    )
    assert site.status() == ("active", cordoned)
    assert site.tags() == tags
    results, _ = act(site, "gpu-leases")
    assert results["free"] == "1 of 2"
    assert results["gpu-1"].startswith("cordoned: in use outside CI: pid 4194303")
    done = site.task("true", params={"GPU_COUNT": "2"})
    assert done.returncode != 0
    assert "in use outside CI" in done.stdout
    site.gpus("set", "1", "processes=", "memory-used-mib=12600")
    dirty = "Worker ready (GPU: 1x NVIDIA, 1 cordoned: GPU 1 dirty, self-test passed)"
    assert site.status() == ("active", dirty)
    site.gpus("set", "1", "memory-used-mib=")
    assert site.status() == READY
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"


def test_a_gpu_is_released_by_force_alone_while_a_task_uses_it(as_deployed):
    site = as_deployed
    running = site.start_task("sleep 500")
    results, _ = act(site, "gpu-leases")
    (key,) = [key for key in ("gpu-0", "gpu-1") if results[key].startswith("leased")]
    assert "(task, " in results[key]
    assert results["free"] == "1 of 2"
    _, message = act(site, "gpu-release", gpu=key, reason="hangs")
    assert "is in use by container" in message
    results, message = act(site, "gpu-release", gpu=key, reason="it hangs", force="true")
    assert results["released"].startswith("container "), message
    output, _ = running.communicate(timeout=60)
    assert running.returncode != 0, output
    assert act(site, "gpu-leases")[0]["free"] == "2 of 2"
    assert ": it hangs" in site.sh("cat /var/log/gpu-ci/oci.log")


def test_actions_answer_while_an_option_of_another_part_is_wrong(as_deployed):
    site = as_deployed
    leases, _ = act(site, "gpu-leases")
    admin, _ = act(site, "get-admin-password", unit="web/0")
    try:
        for app in ("web", "worker"):
            site.configure(app, external_url="ci.example.com")
            assert site.status(f"{app}/0")[1].startswith("external-url 'ci.example.com' is no URL")
        now, message = act(site, "gpu-leases")
        # How long ago a container was used changes meanwhile.
        assert (now.keys(), message) == (leases.keys(), "")
        assert act(site, "gpu-inventory")[0]["gpu-1"].endswith(", for tasks")
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
    assert site.task("true").returncode == 0, "what runs goes on"
    assert act(site, "get-admin-password", unit="web/0") == ({}, message)
    assert act(site, "replace-web-keys", unit="web/0")[1] == ""
    after, _ = act(site, "get-admin-password", unit="web/0")
    assert after["password"] != before["password"]
    assert site.status("web/0") == ("active", "Web ready")
    site.fly.login()
    site.worker("lab-worker-0", 60)
    assert site.task("true").returncode == 0
