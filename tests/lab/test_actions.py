# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The actions on leases, and GPUs that are in use outside CI, on the packed charm."""

import json

from tests.lab import leases
from tests.lab.site import READY


def act(site, action, /, unit="worker/0", **params):
    """Results of an action, and why it failed if it did."""
    number = site.lab.model.run_action(unit, action, params)
    site.lab.settle()
    row = site.lab.store.row("SELECT * FROM action WHERE id = ?", number)
    return json.loads(row["results"]), row["message"]


def test_a_gpu_that_others_use_is_kept_from_tasks_until_they_are_gone(site):
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
    site.gpus("set", "1", "processes=", "memory-used-mib=")
    assert site.status() == READY
    listed, _ = act(site, "gpu-inventory")
    assert listed["count"] == "2"
    assert listed["gpu-1"].startswith("NVIDIA A100-SXM4-80GB, 81920 MiB\n  GPU-")
    assert listed["gpu-1"].endswith("\n  for tasks")


def test_a_refused_and_a_granted_task_are_explained_and_a_gpu_is_released_by_force(site):
    running = site.start_task("sleep 500")
    seen = json.loads(act(site, "gpu-leases", format="json")[0]["json"])
    (device,) = [one for one in seen["devices"] if one["state"] == "leased"]
    key = device["key"]
    (holder,) = [one for one in device["containers"] if seen["containers"][one]["in_use"]]
    try:
        done = site.task("echo never-seen", params={"GPU_COUNT": "3"})
        assert done.returncode == 2
        assert "gpu-ci-worker: too-few-gpus: " in done.stdout
        assert "\nnever-seen" not in done.stdout
        refused = leases.journal(site)[-1]
        assert (refused["granted"], refused["waited_ms"]) == ([], 0)
        results, message = act(site, "gpu-explain", name=refused["container"])
        assert message == ""
        text = " ".join(results["report"].split())
        assert "task requests 3 GPUs" in text
        assert f"Held then GPU {device['index']}: container {holder}" in text
        results, message = act(site, "gpu-explain", name=holder[:13])
        text = " ".join(results["report"].split())
        assert "CI step" in text
        assert f"Holds GPU {device['index']} since 20" in text
        _, message = act(site, "gpu-reclaim", gpu=key, reason="hangs")
        assert "is in use by container" in message
    finally:
        released, message = act(site, "gpu-reclaim", gpu=key, reason="it hangs", force="true")
        output, _ = running.communicate(timeout=60)
    assert released["was"].startswith("held by container "), message
    assert running.returncode != 0, output
    results, _ = act(site, "gpu-leases")
    assert results["free"] == "2 of 2"
    assert ": it hangs" in site.sh("cat /var/log/gpu-ci/oci.log")
    text = " ".join(act(site, "gpu-explain", name=holder)[0]["report"].split())
    assert ": it hangs" in text.partition("Ended by ")[2]
    results, message = act(site, "gpu-explain", name="no-team/no-pipeline/no-job/1")
    assert (results["state"], message) == ("nothing found", "")
    assert refused["container"] in results["refused-tasks"]


def test_lost_keys_of_web_are_replaced_by_the_action_alone(site):
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
