# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The whole watch as its service runs it, and a real Prometheus with the alerts."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

from tests.functional import gpu_machine
from tests.functional.prometheus import answer, fetched, free_port, program, running

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "src/prometheus_alert_rules/gpus.rules"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("gcc"), reason="needs root and gcc"
)

# What the charm would write; the wrapper's and the watch's folders are the machine's own.
SETTINGS = """
import pathlib, sys
from gpu_agent.gpu.vendors import detect
from gpu_agent.health import settings
from gpu_agent.model.card import Card
from machine import files
gpus = detect.detect().gpus
cards = tuple(Card(one.uuid, one.index, one.pci_address, one.model, one.devices) for one in gpus)
files.ensure_directory(settings.PATH.parent)
for folder in (settings.STATE, "/var/lib/gpu-ci/quarantine", "/var/log/gpu-ci"):
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
text = settings.as_text(settings.Settings(
    "worker/0", "/etc/gpu-ci/health.json", cards=cards, poll_seconds=1.0,
    metrics_port=int(sys.argv[1]), unavailable_folders=("/var/lib/gpu-ci/quarantine",),
))
files.ensure_file(settings.PATH, text)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    program("prometheus")
    with gpu_machine.start(tmp_path_factory) as machine:
        machine.fakegpu("install", "--count", "2")
        yield machine


@contextlib.contextmanager
def watch(machine, port):
    """The watch, in that machine, with its metrics on a port of this one's."""
    packages = next((ROOT / ".venv").glob("lib/python*/site-packages"))
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lib'}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    python = [*machine.enter, sys.executable]
    subprocess.run([*python, "-c", SETTINGS, str(port)], env=env, check=True, timeout=60)
    process = subprocess.Popen(
        [*python, "-m", "gpu_agent.health"], env=env, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.2)
    return found


def test_a_fault_is_a_metric_and_an_alert_and_a_killed_watch_leaves_nothing(machine, tmp_path):
    port = free_port()
    with watch(machine, port) as daemon, running(tmp_path, port, rules=[RULES]) as address:

        def asked(query):
            return [one["metric"] for one in answer(address, query, time.time())]

        def page():
            return fetched(f"http://127.0.0.1:{port}/metrics").decode()

        until(lambda: len(asked("gpuci_gpu_temperature_celsius")) == 2, page)
        assert not asked("ALERTS"), asked("ALERTS")
        machine.fakegpu("xid", "1", "79")
        (alert,) = until(
            lambda: asked('ALERTS{alertname="GpuQuarantined",alertstate="firing"}'), page
        )
        assert (alert["gpu"], alert["cause"]) == ("1", "xid-79")
        assert asked('gpuci_gpu_xid_total{gpu="1",xid="79"} == 1')
        assert len(asked("gpuci_gpu_quarantined == 0")) == 1
        daemon.kill()
        # Prometheus ends what a target that is gone told last.
        until(lambda: asked("up == 0"), lambda: str(asked("up")))
        until(lambda: not asked("gpuci_gpu_temperature_celsius"), lambda: "it goes on")
