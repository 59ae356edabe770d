# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the watch tells Prometheus, and that it tells nothing old as if it were fresh."""

import dataclasses
import re
import types

import pytest

from gpu_agent.model import ci_figures, clock_reasons
from gpu_agent.model.card import Card, Figures
from gpu_agent.model.ci_figures import CiFigures, Requests
from gpu_agent.model.decisions import Suspect
from gpu_agent.model.observations import Hang, Holding, Look, Message, Moment, Source
from gpu_agent.reporting.metrics import collector as metrics
from gpu_agent.reporting.metrics import definitions as exporter
from gpu_runtime.unavailable import QUARANTINED, Unavailable

CARDS = (
    Card("GPU-a", 0, "0000:01:00.0", "A100-SXM4-80GB", ("GPU-a",)),
    Card("GPU-b", 1, "0000:02:00.0", 'odd "model"\\', ("MIG-1", "MIG-2")),
)
A = 'gpu="0",uuid="GPU-a",model="A100-SXM4-80GB"'
FIGURES = Figures(
    busy=71, memory_used_mib=1024, memory_total_mib=81920, power_w=301.5, power_limit_w=400.0,
    energy_j=7200.25, temperature=64, sm_clock_mhz=1410, reasons=0x84, ecc_corrected=3,
    ecc_uncorrected=0, remap_pending=True, remap_failed=False,
)  # fmt: skip

LOST = Unavailable(QUARANTINED, "xid-79", "Xid 79: off the bus")


@pytest.fixture
def clock():
    """Seconds since boot, which stand still unless a test moves them."""
    return types.SimpleNamespace(now=1000.0)


@pytest.fixture
def told(clock, tmp_path):
    ci = metrics.Ci({}.get, tmp_path / "figures.json")
    return metrics.Metrics("1.2", "enabled", 15, tmp_path / "oci.log", ci, lambda: clock.now)


def moment(at, **more):
    return Moment(now=at, wall=at + 1_700_000_000, **{"cards": CARDS, **more})


def look(at, **figures):
    return Look(at, {"GPU-a": FIGURES, **figures})


def samples(text):
    """Values by what stands before them."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = dict(line.rsplit(" ", 1) for line in lines)
    assert len(found) == len(lines), "a sample is told twice"
    return found


def test_each_figure_has_its_unit_and_its_gpu(told):
    told.turn(moment(1000, look=look(999)), [])
    found = samples(told.text())
    expected = {
        "busy_ratio": "0.71",
        "memory_used_bytes": str(1 << 30),
        "memory_total_bytes": str(80 << 30),
        "power_watts": "301.5",
        "power_limit_watts": "400",
        "energy_joules_total": "7200.25",
        "temperature_celsius": "64",
        "sm_clock_hertz": "1410000000",
        "ecc_corrected_total": "3",
        "ecc_uncorrected_total": "0",
        "remap_pending": "1",
        "remap_failed": "0",
        "answers": "1",
    }
    for name, value in expected.items():
        assert found[f"gpuci_gpu_{name}{{{A}}}"] == value
    reasons = {name: found[f'gpuci_gpu_clock_reason{{{A},reason="{name}"}}'] for name in
               exporter.CLOCK_REASONS}  # fmt: skip
    assert {name for name, value in reasons.items() if value == "1"} == {
        "software-power-cap",
        "power-brake",
    }


def test_clock_reasons_are_those_of_the_self_test():
    bits = exporter.CLOCK_REASONS
    assert (bits["hardware-slowdown"], bits["software-thermal"]) == (
        clock_reasons.HARDWARE_SLOWDOWN,
        clock_reasons.SOFTWARE_THERMAL,
    )
    assert (bits["hardware-thermal"], bits["power-brake"], bits["software-power-cap"]) == (
        clock_reasons.HARDWARE_THERMAL,
        clock_reasons.POWER_BRAKE,
        clock_reasons.SOFTWARE_POWER_CAP,
    )


def test_what_a_gpu_does_not_tell_has_no_sample(told):
    told.turn(moment(1000, look=Look(999, {"GPU-a": Figures(temperature=40)})), [])
    found = samples(told.text())
    assert f"gpuci_gpu_temperature_celsius{{{A}}}" in found
    assert f"gpuci_gpu_power_watts{{{A}}}" not in found
    assert "gpuci_gpu_clock_reason" not in told.text()


@pytest.mark.parametrize(
    "seen",
    [
        Look(999, {"GPU-a": Figures(failure="GPU is lost")}),
        Look(999, {}, missing=frozenset(["GPU-a"])),
        Look(999, {}, gone=frozenset(["GPU-a"])),
    ],
)
def test_a_gpu_that_does_not_answer_has_no_figures(told, seen):
    told.turn(moment(1000, look=seen), [])
    found = samples(told.text())
    assert found[f"gpuci_gpu_answers{{{A}}}"] == "0"
    assert f"gpuci_gpu_temperature_celsius{{{A}}}" not in found


def test_figures_end_with_the_second_poll_that_does_not_come_back(told, clock):
    told.turn(moment(1000, look=look(1000)), [])
    clock.now = 1029
    told.turn(moment(1029, look=look(1000)), [])
    assert f"gpuci_gpu_busy_ratio{{{A}}}" in told.text()
    clock.now = 1031
    told.turn(moment(1031, look=look(1000), holdings=()), [])
    found = samples(told.text())
    assert not [name for name in found if name.startswith(("gpuci_gpu_busy", "gpuci_gpu_answ"))]
    # What the worker itself knows is as fresh as ever.
    assert found[f"gpuci_gpu_leased{{{A}}}"] == "0"
    assert found["gpuci_last_good_poll_age_seconds"] == "31"
    assert found["gpuci_last_good_poll_timestamp_seconds"] == "1700001000"


def test_a_watch_that_stands_still_tells_its_age_and_nothing_as_fresh(told, clock):
    told.turn(moment(1000, look=look(1000), unavailable={"GPU-a": LOST}), [])
    clock.now = 1031
    found = samples(told.text())
    assert found["gpuci_health_turn_age_seconds"] == "31"
    stays = {metric.name for metric in exporter.TABLE if metric.stays}
    names = {re.match(r"\w+", name).group() for name in found}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in names} <= stays


def test_before_the_first_poll_its_age_is_the_watchs_own(told, clock):
    clock.now = 1045
    found = samples(told.text())
    assert found["gpuci_last_good_poll_age_seconds"] == "45"
    assert "gpuci_last_good_poll_timestamp_seconds" not in found


def test_the_same_poll_keeps_its_time_when_the_clock_is_set(told):
    told.turn(moment(1000, look=look(999)), [])
    before = samples(told.text())["gpuci_last_good_poll_timestamp_seconds"]
    told.turn(dataclasses.replace(moment(1005, look=look(999)), wall=5.0), [])
    assert samples(told.text())["gpuci_last_good_poll_timestamp_seconds"] == before


def test_leases_of_jobs_and_of_the_self_test(told):
    holdings = (
        Holding("build", "/b", ("GPU-a",), since=1, in_use=True),
        Holding("gpu-selftest-x", "/s", ("MIG-2",), since=1, in_use=True, ours=True),
    )
    told.turn(moment(1000, holdings=holdings), [])
    text = told.text()
    b = r'gpu="1",uuid="GPU-b",model="odd \"model\"\\"'
    assert f"gpuci_gpu_leased{{{A}}} 1\n" in text
    assert f"gpuci_gpu_leased{{{b}}} 0\n" in text
    assert f"gpuci_gpu_under_test{{{A}}} 0\n" in text
    assert f"gpuci_gpu_under_test{{{b}}} 1\n" in text


def test_a_lease_that_nobody_uses_is_none(told):
    holdings = (Holding("build", "/b", ("GPU-a",), since=1, in_use=False),)
    told.turn(moment(1000, holdings=holdings), [])
    assert f"gpuci_gpu_leased{{{A}}} 0\n" in told.text()


def test_a_gpu_that_is_handed_over_is_not_free(told):
    gone = Holding("b", "/b", ("GPU-a",), since=1, in_use=False, handing_over=True)
    told.turn(moment(1000, holdings=(gone,)), [])
    assert f"gpuci_gpu_leased{{{A}}} 0\n" in told.text()
    assert f"gpuci_gpu_handing_over{{{A}}} 1\n" in told.text()
    told.turn(moment(1001, holdings=()), [])
    assert f"gpuci_gpu_handing_over{{{A}}} 0\n" in told.text()


def test_an_error_is_not_taken_for_free_gpus(told):
    told.turn(moment(1000, holdings=None), [])
    assert "gpuci_gpu_leased" not in told.text()
    assert f"gpuci_gpu_quarantined{{{A}}} 0\n" in told.text()


@pytest.mark.parametrize("kind", ["quarantined", "cordoned", "external", "unusable"])
def test_each_kind_of_unavailable_gpu_has_a_gauge_of_its_own(told, kind):
    told.turn(moment(1000, unavailable={"GPU-a": Unavailable(kind, "a-code", "why")}), [])
    text = told.text()
    for other in ("quarantined", "cordoned", "external", "unusable"):
        assert f"gpuci_gpu_{other}{{{A}}} {int(kind == other)}\n" in text
    assert text.count("gpuci_gpu_quarantine_info{") == (kind == "quarantined")


@pytest.mark.parametrize(("code", "cause"), [("xid-79", "xid-79"), ("", "other")])
def test_the_cause_of_a_quarantine_is_its_code(told, code, cause):
    told.turn(moment(1000, unavailable={"GPU-a": Unavailable(QUARANTINED, code, "why")}), [])
    assert f'gpuci_gpu_quarantine_info{{{A},cause="{cause}"}} 1\n' in told.text()


def test_jobs_are_named_where_they_are_known_and_never_by_their_containers(clock, tmp_path):
    job = types.SimpleNamespace(team="main", pipeline="p\nq", job="train")
    names = {"c1": job, "c2": job}.get
    ci = metrics.Ci(names)
    told = metrics.Metrics("1", "enabled", 15, tmp_path / "no", ci, lambda: clock.now)
    holdings = tuple(
        Holding(name, "/b", ("GPU-a",), since=1, in_use=True) for name in ("c1", "c2", "c3")
    )
    told.turn(moment(1000, holdings=holdings), [])
    lines = [line for line in told.text().splitlines() if line.startswith("gpuci_lease_info")]
    assert lines == [r'gpuci_lease_info{gpu="0",team="main",pipeline="p\nq",job="train"} 1']
    assert not re.search(r"c[123]\b", told.text())


def xid(code, source=Source.EVENT, uuid="GPU-a"):
    return Message(1.0, uuid, source, xid=code)


def test_an_xid_that_driver_and_kernels_log_tell_of_counts_once(told):
    told.turn(moment(1000, seen=(xid(31), xid(31, Source.KERNEL))), [])
    told.turn(moment(1001, seen=(xid(31, Source.KERNEL), xid(79, uuid="GPU-gone"))), [])
    assert f'gpuci_gpu_xid_total{{{A},xid="31"}} 2\n' in told.text()
    assert "GPU-gone" not in told.text()


def test_forged_xids_make_no_series_without_end(told):
    told.turn(moment(1000, seen=tuple(xid(code, Source.KERNEL) for code in range(1, 900))), [])
    text = told.text()
    assert text.count("gpuci_gpu_xid_total{") == 33
    assert f'gpuci_gpu_xid_total{{{A},xid="other"}} {899 - 32}\n' in text


def test_a_hung_driver_and_its_return(told):
    told.turn(moment(1000, seen=(Hang(1000, 1),)), [])
    assert samples(told.text())["gpuci_driver_hung"] == "0"
    told.turn(moment(1001, seen=(Hang(1001, 2),)), [])
    assert samples(told.text())["gpuci_driver_hung"] == "1"
    told.turn(moment(1002), [])
    assert samples(told.text())["gpuci_driver_hung"] == "1"
    told.turn(moment(1003, seen=(look(1003),)), [])
    found = samples(told.text())
    assert (found["gpuci_driver_hung"], found["gpuci_driver_missed_calls_total"]) == ("0", "2")


def test_the_breaker_stays_tripped_until_it_is_said_to_be_over(told):
    told.turn(moment(1000), [Suspect("the driver does not answer")])
    told.turn(moment(1001), [])
    assert samples(told.text())["gpuci_breaker_tripped"] == "1"
    told.turn(moment(1002), [Suspect("")])
    assert samples(told.text())["gpuci_breaker_tripped"] == "0"


def test_waits_and_refusals_come_from_the_wrappers_log(told, tmp_path):
    told.turn(moment(1000), [])
    (tmp_path / "oci.log").write_text(
        '{"kind":"task","container":"c","granted":["GPU-a"],"waited_ms":12000,"code":""}\n'
        '{"kind":"task","container":"c","granted":["GPU-a"],"waited_ms":0,"code":""}\n'
        '{"kind":"task","container":"c","granted":[],"code":"wait-timeout"}\n'
    )
    told.turn(moment(1001), [])
    found = samples(told.text())
    assert found['gpuci_lease_wait_seconds_bucket{le="1"}'] == "1"
    assert found['gpuci_lease_wait_seconds_bucket{le="15"}'] == "2"
    assert found['gpuci_lease_wait_seconds_bucket{le="+Inf"}'] == "2"
    assert found["gpuci_lease_wait_seconds_sum"] == "12"
    assert found['gpuci_refusals_total{reason="busy"}'] == "1"
    assert found['gpuci_refusals_total{reason="other"}'] == "0"


def test_a_log_that_can_not_be_read_costs_nothing_else_and_is_said_once(clock, tmp_path, caplog):
    (tmp_path / "target").write_text("")
    (tmp_path / "oci.log").symlink_to("target")
    told = metrics.Metrics("1", "enabled", 15, tmp_path / "oci.log", clock=lambda: clock.now)
    told.turn(moment(1000, look=look(999)), [])
    told.turn(moment(1001, look=look(999)), [])
    assert f"gpuci_gpu_busy_ratio{{{A}}} 0.71\n" in told.text()
    assert caplog.text.count("metrics go on without waits and refusals") == 1


CI = CiFigures(
    995.0, {"idle": 2, "busy": 1, "ending": 0}, 3, fault=True, requests=Requests(5000, 40, 1700)
)  # fmt: skip


def of_ci(told, tmp_path, figures, at=1000):
    """The samples of the CI system at that time, with these figures in its file."""
    text = figures if isinstance(figures, str) else ci_figures.as_text(figures)
    (tmp_path / "figures.json").write_text(text)
    told.turn(moment(at), [])
    return {name: value for name, value in samples(told.text()).items() if is_of_ci(name)}


def is_of_ci(name):
    return name.startswith(("gpuci_runner", "gpuci_ci"))


def test_the_ci_systems_figures_are_published(told, tmp_path):
    assert of_ci(told, tmp_path, CI) == {
        'gpuci_runners{state="idle"}': "2",
        'gpuci_runners{state="busy"}': "1",
        'gpuci_runners{state="ending"}': "0",
        "gpuci_runner_fault": "1",
        "gpuci_ci_jobs_waiting": "3",
        "gpuci_ci_requests_limit": "5000",
        "gpuci_ci_requests_remaining": "40",
        "gpuci_ci_requests_reset_timestamp_seconds": "1700",
    }


def test_what_a_ci_system_does_not_tell_has_no_sample(told, tmp_path):
    silent = dataclasses.replace(CI, waiting=None, requests=None, runners={"idle": 0})
    assert of_ci(told, tmp_path, silent) == {
        'gpuci_runners{state="idle"}': "0", "gpuci_runner_fault": "1",
    }  # fmt: skip
    without_time = dataclasses.replace(silent, requests=Requests(5000, 0))
    found = of_ci(told, tmp_path, without_time)
    assert "gpuci_ci_requests_reset_timestamp_seconds" not in found
    assert found["gpuci_ci_requests_remaining"] == "0"


def test_figures_of_a_daemon_that_is_gone_end_and_damaged_ones_cost_nothing_else(
    told, tmp_path, clock
):
    clock.now = CI.at + 120
    assert of_ci(told, tmp_path, CI, clock.now)
    clock.now += 1
    assert not of_ci(told, tmp_path, CI, clock.now)
    for text in ("", "{", '{"version": 2}'):
        assert not of_ci(told, tmp_path, text, clock.now)
    assert "gpuci_gpus" in told.text()


def test_the_page_has_what_the_table_says_and_nothing_else(told, tmp_path):
    of_ci(told, tmp_path, CI)
    told.turn(moment(1000, look=look(999)), [])
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", told.text(), re.MULTILINE))
    assert kinds.items() <= {metric.name: metric.kind for metric in exporter.TABLE}.items()
    for metric in exporter.TABLE:
        assert re.fullmatch(r"gpuci_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert "\n" not in metric.help
        assert not {"container", "build", "handle", "pid"} & set(metric.labels)


def test_text_that_is_no_utf_8_is_told_all_the_same(told):
    odd = dataclasses.replace(CARDS[0], model="\ud800")
    told.turn(moment(1000, cards=(odd,)), [])
    assert 'model="?"' in told.text().encode().decode()
