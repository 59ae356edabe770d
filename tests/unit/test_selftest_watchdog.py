# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A self-test that hangs, crashes or is stopped: how it ends, and whose fault it says that is."""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import signal
import time

import pytest

from gpu_selftest import results, run, service, settings, watchdog
from gpu_selftest.check import Level, Request
from gpu_selftest.starvation_clock import SERVICE, Pulse
from tests.unit.hanging import ELSEWHERE, hanging, the_result
from tests.unit.situations import GPUS, sliced

KEPT = settings.Settings("worker/0", gpus=GPUS[:2])


def hung(folder, **more):
    """One whose driver hangs, and its limit in seconds; its words, and those beside them.

    Who is allowed little time is not sure of anything while other tests keep the machine busy.
    """
    for limit in (2, 6, 18):
        (folder / str(limit)).mkdir()
        with hanging(folder / str(limit), limit, deaf=True, **more) as process:
            out, err = process.communicate(timeout=limit + 30)
        if "this machine was starved" not in out:
            break
    return process, limit, out, err


def test_a_driver_that_hangs_ends_in_a_failed_report_and_not_later_than_allowed(tmp_path):
    process, limit, out, err = hung(tmp_path)
    assert process.returncode == 1
    assert err == "Asking NVML\n"
    result = the_result(out)
    assert result["text"].startswith(f"the GPU's driver hangs: no answer within {limit} s; ")
    assert "dmesg" in result["remedy"]
    assert re.match(r"failed: quick, 1 check \(1 failed\), \d+ s", out.splitlines()[1])
    assert json.loads(out.splitlines()[0])["seconds"] < limit + 10


def test_what_hangs_elsewhere_takes_no_gpu_out(tmp_path):
    with hanging(tmp_path, 2, deaf=True, wait=ELSEWHERE) as process:
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    result = the_result(out)
    text = "the self-test did not end within 2 s, and does not wait for a driver; "
    assert (result["outcome"], result["text"][: len(text)]) == ("not-run", text)


@pytest.mark.parametrize(
    ("module", "outcome"),
    [
        ("gpu_agent.gpu.vendors.nvidia.nvml", "failed"),
        ("gpu_agent.gpu.kernel.sysfs", "failed"),
        # Formerly wake.nodes, machine.nvidia_module and the like, which ask no driver.
        ("gpu_agent.gpu.vendors.device_nodes", "not-run"),
        # What only passes a call on.
        ("gpu_agent.gpu.vendors.nvidia.vendor", "not-run"),
        ("gpu_agent.gpu.vendors.nvidia.driver_files", "not-run"),
        ("gpu_agent.gpu.vendors.nvidia.driver_packages", "not-run"),
        ("gpu_agent.gpu.vendors.nvidia.driver_state", "not-run"),
        ("gpu_agent.gpu.vendors.nvidia.kernel_modules", "not-run"),
        ("gpu_agent.gpu.vendors.nvidia.module_version", "not-run"),
    ],
)
def test_only_a_module_that_asks_drivers_has_one_blamed(tmp_path, module, outcome):
    importlib.import_module(module)  # the name is one that there is
    names = f'{{"__name__": "{module}", "path": folder / "pipe"}}'
    _, _, out, _ = hung(tmp_path, wait=f'exec("path.read_text()", {names})')
    assert the_result(out)["outcome"] == outcome


def test_a_driver_that_answers_slowly_takes_no_gpu_out(tmp_path):
    with hanging(tmp_path, 2, deaf=True) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it asks nothing just now
                os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.3)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    result = the_result(out)
    text = "the GPU's driver did not answer everything within 2 s, but it answered some, "
    assert (result["outcome"], result["text"][: len(text)]) == ("not-run", text)


@pytest.mark.parametrize("level", ["compute", "burn-in"])
def test_the_first_levels_of_a_long_test_hang_no_longer_than_alone(tmp_path, level):
    process, _, out, _ = hung(tmp_path, level=level, levels=("isolation",))
    assert process.returncode == 1
    assert json.loads(out.splitlines()[0])["level"] == level


def test_what_comes_after_isolation_may_take_its_time(tmp_path):
    with hanging(tmp_path, 0.5, level="compute", levels=("isolation", "compute")) as process:
        assert process.stderr.readline() == "Asking NVML\n"
        time.sleep(1)
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=30)


def limit(kept, request):
    return watchdog.Watchdog(kept, request, run.conclude, results.HOME).limit


def test_isolation_has_time_for_each_device_that_is_handed_out():
    """Eight GPUs in seven MIG devices each, a container for each of which may take 3 s."""
    cut = tuple(sliced(index, *["1g.10gb"] * 7) for index in range(8))
    request, few = Request("20261121T170000Z-1a2b", Level.ISOLATION), KEPT
    assert limit(few, request) == 90
    many = dataclasses.replace(KEPT, gpus=cut)
    assert 56 * 3 <= limit(many, request) < service._LIMITS[Level.ISOLATION]
    quick = dataclasses.replace(request, level=Level.QUICK)
    assert limit(many, quick) < 27


def test_a_crash_is_no_verdict(tmp_path):
    with hanging(tmp_path, 30, crash=True) as process:
        out, err = process.communicate(timeout=30)
    # Not 1, which says that the GPUs were tested and failed, and is no failure of the service.
    assert (process.returncode, out) == (4, "")
    assert err.endswith("OSError: No space left on device\n")


def test_a_verdict_on_a_hanging_driver_that_can_not_be_kept_ends_it_too(tmp_path):
    with hanging(tmp_path, 1, deaf=True, full=True) as process:
        process.communicate(timeout=30)
    assert process.returncode == 4


def test_stopped_one_keeps_nothing_and_says_so(tmp_path):
    with hanging(tmp_path, 30) as process:
        assert process.stderr.readline() == "Asking NVML\n"
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 25  # Left alone, it would end after 30.
    assert process.returncode == 3
    assert out == ""
    assert err == "gpu-selftest: stopped without a verdict; the last verdict stays\n"


# ---- the clock that stands still ----


@pytest.fixture
def beats(request, tmp_path):
    """A clock that beats each 0.05 s, and waits for what the test says.

    The test's parameter, if any, is the program that the machine then runs.
    """
    awaited = [None]
    service = getattr(request, "param", SERVICE)
    clock = Pulse(lambda: awaited[0], home=tmp_path / "selftest", service=service)
    clock.start(1)
    yield clock, awaited
    clock.stop()


def test_the_clock_goes_while_the_machine_serves_others(beats):
    clock, _ = beats
    began = time.monotonic()
    while clock.seconds() <= 1:
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    assert clock.seconds() <= time.monotonic() - began + 0.1
    assert clock.is_sure(1)
    assert not clock.is_sure(4)


def test_the_clock_begins_anew_for_another_question(beats):
    clock, awaited = beats
    time.sleep(1)
    awaited[0] = question = object()
    asked = time.monotonic()
    time.sleep(0.5)
    assert clock.seconds() == 0
    assert clock.seconds(question) < time.monotonic() - asked + 0.1


@pytest.mark.parametrize(
    ("beats", "goes"),
    [
        ("import time; time.sleep(0.7)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", False),
        ("raise OSError('No space left on device')", True),
    ],
    ids=["slow", "no memory", "full disk"],
    indirect=["beats"],
)
def test_the_clock_stands_still_while_the_machine_serves_nobody(beats, goes):
    clock, awaited = beats
    awaited[0] = question = object()
    time.sleep(2)
    assert bool(clock.seconds(question)) == goes
