# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's real looks and effects: each name leads to the part that it says."""

import observe
from ci.concourse import effects, looks, release, service
from ci.concourse.api import worker_view
from ci.concourse.web import health, local_postgresql, web
from ci.concourse.worker import container_network, launcher, rivals, worker
from effects import Effects, Equip, remedy
from gpu_agent.availability import external_use, quarantine
from gpu_agent.diagnosis import machine
from gpu_agent.engines import registry
from gpu_agent.gpu.vendors import detect, device_nodes
from gpu_agent.gpu_run import service as gpu_run_service
from gpu_agent.health import service as health_service
from gpu_agent.reporting.receipts import log as receipts
from gpu_agent.runtime import install, policy, task_mounts
from gpu_selftest import verdict
from gpu_standalone import installation
from host import network, software
from host.nvidia_toolkit import NvidiaToolkit
from lifecycle.driver_upgrade import steps
from parts import gpu_run, health_watch
from parts.selftest import SELF_TEST


def test_each_call_is_that_of_its_part():
    assert vars(Effects()) == {
        "equip": Equip(),
        "install_runtime": install.apply,
        "mount": task_mounts.ensure,
        "record_unavailable": external_use.ensure,
        "close": external_use.close,
        "register_engines": registry.ensure,
        "remedy": remedy,
        "test": SELF_TEST.ensure,
        "watch": health_watch.ensure,
        "serve_gpu_run": gpu_run.ensure,
        "remove": {
            "agent without Juju": installation.remove_timer,
            "health watch": health_service.remove,
            "gpu-run": gpu_run_service.remove,
            "engines": registry.remove,
            "self-test": SELF_TEST.remove,
            "runtime": install.remove,
            "receipts": receipts.remove,
            "host software": software.HERE.remove,
        },
    }


def test_each_call_of_concourse_is_that_of_its_part():
    assert vars(effects.Effects()) == {
        "new_secrets": web.new_secrets,
        "authorize": web.authorize,
        "prune": worker_view.prune,
        "install_launcher": launcher.ensure,
        "forward": container_network.ensure,
        "apply_web": web.apply,
        "apply_worker": worker.apply,
        "retire_worker": worker.retire,
        "set_database_aside": local_postgresql.HERE.set_aside,
        "remove": {
            "worker": worker.remove,
            "launcher": launcher.remove,
            "web": web.remove,
            "database": local_postgresql.HERE.remove,
            "release": release.remove,
            "network": container_network.remove,
        },
    }


def test_each_look_is_at_its_part():
    looks = dict(vars(observe.Looks()))
    assert looks.pop("toolkit").__func__ is NvidiaToolkit.look
    assert looks == {
        "machine": machine.machine,
        "architecture": machine.architecture,
        "nodes": device_nodes.present,
        "gpus": detect.in_time,
        "idle_gpus": observe.idle_gpus,
        "verdict": verdict.verdict,
        "quarantined": quarantine.read,
        "handed_out": policy.handed_out,
        "external": observe.external,
        "driver": observe.driver,
        "upgrade": steps.said,
        "watches": health_service.is_running,
        "suspect": health_service.suspect,
        "metrics_taken": health_watch.taken_port,
    }


def test_each_look_at_concourse_is_at_its_part():
    assert vars(looks.Looks()) == {
        "worker_name": worker.name,
        "worker_runs": worker.healthy,
        "is_connected": worker.is_connected,
        "has_tag": worker.has_tag,
        "copies_volumes": worker.copies_volumes,
        "trusted": worker.trusted,
        "rivals": rivals.look,
        "web_is_set_up": web.is_set_up,
        "web_runs": web.healthy,
        "authorized": web.authorized,
        "peer_address": web.peer_address,
        "metrics_port": web.metrics_port,
        "url": web.url,
        "lost_database": health.lost_database,
        "interfaces": network.interfaces,
        "folder": task_mounts.refused,
        "failing": service.failing,
        "taken": service.taken,
        "sights": worker_view.look,
        "wrong_for": worker_view.wrong_for,
    }
