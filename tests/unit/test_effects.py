# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's real effects: each name leads to the part that it says."""

from ci.concourse import effects, release
from ci.concourse.web import local_postgresql, web
from ci.concourse.worker import container_network, launcher, worker
from effects import Effects, equip
from gpu_agent.availability import external_use
from gpu_agent.engines import registry
from gpu_agent.gpu_run import service as gpu_run_service
from gpu_agent.health import service as health_service
from gpu_agent.reporting.receipts import log as receipts
from gpu_agent.runtime import install, task_mounts
from host import software
from parts import gpu_run, health_watch, selftest


def test_each_call_is_that_of_its_part():
    assert vars(Effects()) == {
        "equip": equip,
        "install_runtime": install.apply,
        "mount": task_mounts.ensure,
        "record_unavailable": external_use.ensure,
        "close": external_use.close,
        "register_engines": registry.ensure,
        "test": selftest.ensure,
        "watch": health_watch.ensure,
        "serve_gpu_run": gpu_run.ensure,
        "remove": {
            "health watch": health_service.remove,
            "gpu-run": gpu_run_service.remove,
            "engines": registry.remove,
            "self-test": selftest.remove,
            "runtime": install.remove,
            "receipts": receipts.remove,
            "host software": software.remove,
        },
    }


def test_each_call_of_concourse_is_that_of_its_part():
    assert vars(effects.Effects()) == {
        "install_launcher": launcher.ensure,
        "forward": container_network.ensure,
        "apply_web": web.apply,
        "apply_worker": worker.apply,
        "retire_worker": worker.retire,
        "set_database_aside": local_postgresql.set_aside,
        "remove": {
            "worker": worker.remove,
            "launcher": launcher.remove,
            "web": web.remove,
            "database": local_postgresql.remove,
            "release": release.remove,
            "network": container_network.remove,
        },
    }
