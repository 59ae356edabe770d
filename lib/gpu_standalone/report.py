# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What gpu-ci-agent shows people: the state of this machine, and the report of a self-test."""

import collections.abc
import dataclasses
import typing

from gpu_agent import install as app
from gpu_agent.availability import lease_report as leases
from gpu_agent.availability import quarantine
from gpu_agent.health import service as health_service
from gpu_agent.health import settings as health_settings
from gpu_agent.model import inventory as model_inventory
from gpu_agent.model.inventory import Gpu
from gpu_selftest import report as selftest_report
from gpu_selftest import results
from gpu_selftest import settings as selftest_settings
from gpu_selftest.results import Report
from gpu_standalone import installation
from gpu_standalone.wording import without_juju

_WORDS: typing.Final = ("text", "cause", "remedy")


def status() -> str:
    """Return the state of the agent, the GPUs and their holders, one fact in a line.

    Raises:
        gpu_agent.availability.lease_report.LeaseError: the leases cannot be read.
        OSError: a record cannot be read.
    """
    version = (app.HOME / app.CURRENT).resolve().name
    if not installation.is_started():
        return f"agent: version {version}, not started: sudo gpu-ci-agent start\n"
    watched = health_settings.PATH.exists()
    health = "runs" if health_service.is_running() else "does not run"
    last = results.read()
    lines = {
        "agent": f"version {version}, started",
        "health service": health if watched else "disabled",
        "self-test": selftest_report.headline(last) if last else "none yet",
        **leases.report(),
    }
    if common := health_service.suspect():
        lines["health service"] += f", and takes no further GPU out: {common}"
    shown = [f"{key}: {value}" for key, value in lines.items()]
    return without_juju("\n".join([*shown, ""]))


def unavailable(gpus: collections.abc.Sequence[Gpu]) -> list[str]:
    """Return a sentence for each GPU that is out of use, with the remedy.

    Raises:
        OSError: a record cannot be read.
    """
    index = {gpu.uuid: f"GPU {gpu.index}" for gpu in gpus}
    found = [entry for entry in quarantine.read() if entry.uuid in index]
    said = [
        f"{index[one.uuid]} is out of use: {one.reason}. {one.remedy}".strip() for one in found
    ]
    return [without_juju(text) for text in said]


def gpus(found: collections.abc.Sequence[Gpu]) -> list[str]:
    """Return a line for each GPU."""
    return [
        f"GPU {gpu.index}: {gpu.model}, {model_inventory.memory_gib(gpu)} GiB, {gpu.uuid}"
        for gpu in found
    ]


def table(report: Report) -> str:
    """Return the report of a self-test for people."""
    told = tuple(
        dataclasses.replace(one, **{name: without_juju(getattr(one, name)) for name in _WORDS})
        for one in report.results
    )
    kept = selftest_settings.read()
    shown = dataclasses.replace(report, results=told)
    return selftest_report.table(shown, kept.gpus if kept else ())
