# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The packed charm on a real Juju model, in the order of the tests: each goes on from the last."""

# A release that has to be downloaded is about 1 GB.
DEPLOY_SECONDS = 45 * 60
SETTLE_SECONDS = 15 * 60


async def results_of(unit, name):
    action = await unit.run_action(name)
    await action.wait()
    assert action.status == "completed", action.data
    return action.results


async def test_web_and_worker_become_ready(ops_test, charm, concourse):
    """arrange: an empty model. act: the commands of the README. assert: all units are active."""
    for name in ("web", "worker"):
        await ops_test.model.deploy(
            charm,
            application_name=name,
            config={"deployment-mode": name},
            resources={"concourse": concourse},
        )
    await ops_test.model.deploy("postgresql", channel="14/stable")
    await ops_test.model.integrate("web:postgresql", "postgresql:database")
    await ops_test.model.integrate("web:web-tsa", "worker:worker-tsa")
    await ops_test.model.wait_for_idle(
        apps=["web", "worker", "postgresql"], status="active", timeout=DEPLOY_SECONDS
    )
    message = {
        name: ops_test.model.applications[name].units[0].workload_status_message
        for name in ("web", "worker")
    }
    assert message["web"].startswith("Web ready"), message
    assert message["worker"].startswith("Worker ready"), message


async def test_actions_answer(ops_test):
    """arrange: web and worker. act: run both actions. assert: their documented results."""
    web, worker = (ops_test.model.applications[name].units[0] for name in ("web", "worker"))
    assert "state" in await results_of(worker, "gpu-inventory")
    admin = await results_of(web, "get-admin-password")
    assert admin["username"]
    assert admin["password"]


async def test_enabling_gpus_is_told_in_status(ops_test):
    """arrange: a worker. act: enable-gpu. assert: status has the GPUs found, or a remedy."""
    worker = ops_test.model.applications["worker"]
    await worker.set_config({"enable-gpu": "true"})
    await ops_test.model.wait_for_idle(apps=["worker"], timeout=SETTLE_SECONDS)
    unit = worker.units[0]
    found = await results_of(unit, "gpu-inventory")
    if found["state"] == "ready":
        assert unit.workload_status_message.startswith("Worker ready (GPU: ")
    else:
        assert unit.workload_status == "blocked", unit.workload_status_message
        assert unit.workload_status_message


async def test_a_bad_option_blocks_and_a_good_one_mends_it(ops_test):
    """arrange: a worker. act: a vendor typo, then reset. assert: blocked by name, then ready."""
    worker = ops_test.model.applications["worker"]
    await worker.set_config({"gpu-vendor": "nvidea", "enable-gpu": "false"})
    await ops_test.model.wait_for_idle(apps=["worker"], status="blocked", timeout=SETTLE_SECONDS)
    assert "gpu-vendor" in worker.units[0].workload_status_message
    await worker.reset_config(["gpu-vendor"])
    await ops_test.model.wait_for_idle(apps=["worker"], status="active", timeout=SETTLE_SECONDS)


async def test_a_second_worker_joins_and_leaves(ops_test):
    """arrange: one worker. act: add a unit, remove it. assert: it was ready, then it is gone."""
    worker = ops_test.model.applications["worker"]
    await worker.add_unit()
    await ops_test.model.wait_for_idle(
        apps=["worker"], status="active", wait_for_exact_units=2, timeout=DEPLOY_SECONDS
    )
    await worker.destroy_unit(worker.units[1].name)
    await ops_test.model.wait_for_idle(
        apps=["worker"], status="active", wait_for_exact_units=1, timeout=SETTLE_SECONDS
    )
