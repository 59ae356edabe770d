# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One unit with web and worker on Juju 3.6, the oldest Juju that metadata.yaml allows."""

import os

from tests.integration import needs

# A release that has to be downloaded is about 1 GB.
DEPLOY_SECONDS = 45 * 60
REMOVE_SECONDS = 15 * 60
# Of a machine without a GPU, and of a container to which its host has passed none.
NO_GPU = ("No GPU on the PCI bus", "on the host but not in this container")


async def test_a_unit_becomes_ready_tests_its_gpus_and_leaves(ops_test, tmp_path, lacking):
    """Arrange: an empty model. Act: deploy, gpu-selftest, remove. Assert: ready, passed, gone."""
    empty = tmp_path / "concourse.tgz"
    empty.touch()
    application = await ops_test.model.deploy(
        needs.charms()[0],
        application_name="solo",
        config={"deployment-mode": "all", "enable-gpu": "true"},
        resources={"concourse": os.environ.get("GPUCI_CONCOURSE_TARBALL") or str(empty)},
    )

    def without_gpu(unit):
        said = unit.workload_status_message
        return unit.workload_status == "blocked" and any(text in said for text in NO_GPU)

    def settled():
        for unit in application.units:
            assert unit.workload_status != "error", unit.workload_status_message
            if unit.agent_status == "idle" and (
                unit.workload_status == "active" or without_gpu(unit)
            ):
                return True
        return False

    await ops_test.model.block_until(settled, timeout=DEPLOY_SECONDS)
    (unit,) = application.units
    status = unit.workload_status_message
    lacks_gpu = without_gpu(unit)
    if not lacks_gpu:
        assert status.startswith("Web and worker ready (GPU: ")
        test = await unit.run_action("gpu-selftest")
        await test.wait()
        assert (test.status, test.results["verdict"]) == ("completed", "passed"), test.results
    await ops_test.model.remove_application("solo", block_until_done=True, timeout=REMOVE_SECONDS)
    if lacks_gpu:
        lacking(f"deployed and removed, but no self-test without a GPU: {status}")
