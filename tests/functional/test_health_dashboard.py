# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A real Prometheus scrapes the watch's metrics, and each query of the dashboard returns data."""

import itertools
import json
import pathlib
import re
import subprocess
import time
import types

import pytest

from gpu_agent.model.card import Card, Figures
from gpu_agent.model.observations import Holding, Look, Message, Moment, Source
from gpu_agent.reporting.metrics import collector as metrics
from gpu_agent.reporting.metrics import definitions as exporter
from gpu_agent.reporting.metrics import server as serving
from gpu_runtime.unavailable import QUARANTINED, Unavailable
from tests.functional.prometheus import answer, fetched, program, running

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "src/grafana_dashboards/gpus.json").read_text())

CARDS = tuple(
    Card(f"GPU-{n}", n, f"0000:0{n}:00.0", "A100-SXM4-80GB", (f"GPU-{n}",)) for n in range(3)
)
JOB = types.SimpleNamespace(team="main", pipeline="train", job="fit")
# What Grafana puts in place of its own variables.
GRAFANA = {
    "$__range": "5m",
    "$__rate_interval": "5m",
    "$juju_application": ".*",
    "$juju_unit": ".*",
}


def moment(turn):
    """A worker with work: one GPU is held, one quarantined, one free."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    figures = Figures(
        busy=70, memory_used_mib=61 << 10, memory_total_mib=80 << 10, power_w=300.0,
        power_limit_w=400.0, energy_j=1000.0 * turn, temperature=66, sm_clock_mhz=1410,
        reasons=0x4, ecc_corrected=turn, ecc_uncorrected=0, remap_pending=False,
        remap_failed=False,
    )  # fmt: skip
    return Moment(
        now=now,
        wall=time.time(),
        cards=CARDS,
        seen=(Message(now, "GPU-0", Source.EVENT, xid=13),),
        look=Look(now, {card.uuid: figures for card in CARDS}),
        holdings=(Holding("container", "/bundle", ("GPU-0",), since=now, in_use=True),),
        unavailable={"GPU-1": Unavailable(QUARANTINED, "xid-79", "Xid 79: off the bus")},
    )


class Worker:
    """The watch's metrics, served, with turns that a test makes."""

    def __init__(self, folder):
        self._log = folder / "oci.log"
        self._metrics = metrics.Metrics(
            "1", "enabled", 15, self._log, metrics.Ci({"container": JOB}.get)
        )
        self.server = serving.Server(0, self._metrics.text)
        self._turns = 0

    def turn(self):
        self._turns += 1
        lines = (
            {"granted": ["GPU-0"], "waited_ms": 7000, "code": ""},
            {"code": "wait-timeout"},
        )
        with self._log.open("a") as log:
            for line in lines:
                log.write(json.dumps({"kind": "task", "container": "c", **line}) + "\n")
        self._metrics.turn(moment(self._turns), [])


# What Concourse 8.3 serves of a task that has waited for a worker, and of one that waits
# (atc/worker/pool.go, atc/metric/emitter/prometheus.go).
STEP = 'platform="linux",teamId="1",teamName="main",type="task",workerTags="gpu_gpu-count>=2"'
WEB = """\
# TYPE concourse_steps_waiting gauge
concourse_steps_waiting{{{step}}} 1
# TYPE concourse_steps_wait_duration histogram
concourse_steps_wait_duration_bucket{{{step},le="10"}} 0
concourse_steps_wait_duration_bucket{{{step},le="300"}} {turn}
concourse_steps_wait_duration_bucket{{{step},le="+Inf"}} {turn}
concourse_steps_wait_duration_sum{{{step}}} {turn}
concourse_steps_wait_duration_count{{{step}}} {turn}
"""


@pytest.fixture
def web():
    """Stands for Concourse's web, of which only the metrics count here."""
    turns = itertools.count()
    server = serving.Server(0, lambda: WEB.format(step=STEP, turn=next(turns)))
    yield server
    server.close()


@pytest.fixture
def worker(tmp_path):
    worker = Worker(tmp_path)
    worker.turn()
    yield worker
    worker.server.close()


def asked(address, query):
    # In a minute: whole minutes are the steps of the dashboard's subqueries.
    found = answer(address, query, time.time() + 60)
    return [one for one in found if one["value"][1] != "NaN"]


def queries():
    """Of each panel: its title and what it asks."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in GRAFANA.items():
                query = query.replace(name, value)
            assert "$" not in query, panel["title"]
            found.append((panel["title"], query))
    return found


def test_each_query_of_the_dashboard_returns_data(worker, web, tmp_path):
    with running(tmp_path, worker.server.port, web.port) as address:
        missing = queries()
        assert len(missing) > 30
        end = time.monotonic() + 60
        while missing and time.monotonic() < end:
            worker.turn()
            time.sleep(0.5)
            missing = [(title, query) for title, query in missing if not asked(address, query)]
        assert missing == []
        (row,) = asked(address, dict(queries())["By job"])
        # `job` is Prometheus' own label, of the scrape: ours gets another name by its rule.
        assert row["metric"] == {"team": "main", "pipeline": "train", "exported_job": "fit"}
        assert asked(address, "gpuci_gpu_quarantine_info")[0]["metric"]["cause"] == "xid-79"
        assert asked(address, 'up{job="gpu-ci"} == 1')


def test_promtool_has_nothing_to_say_of_the_page(worker):
    page = fetched(f"http://127.0.0.1:{worker.server.port}/metrics")
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_dashboard_asks_for_metrics_that_there_are():
    known = {metric.name for metric in exporter.TABLE}
    text = json.dumps(DASHBOARD)
    names = {re.sub("_(bucket|count)$", "", name) for name in re.findall(r"gpuci_[a-z_]+", text)}
    assert names <= known
    told_of = known - names
    assert len(told_of) < len(known) / 2, f"the dashboard leaves out {told_of}"


def test_panels_have_titles_and_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert panel["title"]
        assert not taken & cells, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_each_panel_asks_the_prometheus_that_was_chosen():
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert variables == {"prometheusds", "juju_application", "juju_unit"}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${prometheusds}"
            # Web is another application than the worker's.
            assert "$juju_unit" in target["expr"] or "concourse_steps_wait" in target["expr"]
