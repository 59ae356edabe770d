# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options that say which GPUs there are for tasks and who gets them for how long."""

import pytest

from options.table import Engines, Minimums
from tests.unit.situations import parse, refused


def test_enable_gpu():
    assert parse(enable_gpu=True).enable_gpu


UUID = "GPU-4d4f434b-0000-0000-0000-00000000000a"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("all", ()),
        ("ALL", ()),
        (" all ", ()),
        ("0", ("0",)),
        ("1,0", ("1", "0")),
        (" 1 , 0 ", ("1", "0")),
        ("01,1", ("1",)),
        (UUID, (UUID,)),
        (UUID.upper(), (UUID,)),
        ("0000:01:00.0", ("0000:01:00.0",)),
        ("01:00.0", ("0000:01:00.0",)),
        ("00000000:0A:00.0", ("0000:0a:00.0",)),
        ("10000:01:00.0", ("10000:01:00.0",)),
        ("gpu-0123456789ABCDEF", ("GPU-0123456789abcdef",)),
        ("pci-0000:0A:00.0", ("PCI-0000:0a:00.0",)),
        ("PCI-0000:0a:00.11", ("PCI-0000:0a:00.11",)),
        ("GPU-0123456789abcdef-7", ("GPU-0123456789abcdef-7",)),
        (f"2,{UUID},41:00.0", ("2", UUID, "0000:41:00.0")),
    ],
)
def test_gpu_device_ids(text, ids):
    assert parse(gpu_device_ids=text).gpu_device_ids == ids


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("", ""),
        (",", ""),
        ("0,", ""),
        ("none", "none"),
        ("al", "al"),
        ("all,0", "all"),
        ("0 1", "0 1"),
        ("0-3", "0-3"),
        ("-1", "-1"),
        ("0x1", "0x1"),
        ("1.0", "1.0"),
        ("²", "²"),
        ("\N{ARABIC-INDIC DIGIT ONE}", "\N{ARABIC-INDIC DIGIT ONE}"),
        ("GPU-1234", "GPU-1234"),
        ("4d4f434b-0000-0000-0000-00000000000a", "4d4f434b-0000-0000-0000-00000000000a"),
        ("01:00.8", "01:00.8"),
        ("PCI-01:00.0", "PCI-01:00.0"),
        ("PCI-0000:0a:00.", "PCI-0000:0a:00."),
        ("GPU-0123456789abcdef-", "GPU-0123456789abcdef-"),
        ("GPU-0123456789abcde", "GPU-0123456789abcde"),
        ("0,x\ny", "x\\ny"),
        ("0,$(reboot)", "$(reboot)"),
    ],
)
def test_bad_gpu_device_ids(text, item):
    assert refused(gpu_device_ids=text).startswith(
        f"gpu-device-ids '{item}' is not an id of a GPU: use all, or indexes, UUIDs"
    )


def test_an_index_of_ten_thousand_digits_is_only_refused():
    assert "..." in refused(gpu_device_ids="9" * 10_000)


@pytest.mark.parametrize("vendor", ["auto", "nvidia", "amd", "intel"])
def test_gpu_vendor(vendor):
    assert parse(gpu_vendor=vendor).gpu_vendor == vendor


@pytest.mark.parametrize("vendor", ["", "nvida", "NVIDIA", "amd,intel"])
def test_bad_gpu_vendor(vendor):
    assert refused(gpu_vendor=vendor) == (
        f"gpu-vendor '{vendor}' is not allowed: use auto, nvidia, amd or intel"
    )


def test_gpu_allocation():
    assert parse(gpu_allocation="shared").gpu_allocation == "shared"
    for value in ("", "Exclusive", "none", "shared,exclusive"):
        assert refused(gpu_allocation=value) == (
            f"gpu-allocation '{value}' is not allowed: use exclusive or shared"
        )


def test_gpus_of_privileged_tasks():
    assert parse(gpu_for_privileged_tasks=True).gpu_for_privileged_tasks


WORDS = {
    "gpu-health": ("enabled", "observe", "disabled"),
    "job-log": ("enabled", "faults", "disabled"),
    "idle-gpu-action": ("warn", "ignore", "fail"),
    "gpu-recovery": ("none", "reset"),
    "auto-reboot": ("none", "driver", "gpu", "all"),
}


@pytest.mark.parametrize("option", WORDS)
def test_the_words_of_the_watch(option):
    attribute, words = option.replace("-", "_"), WORDS[option]
    assert getattr(parse(), attribute) == words[0]
    for word in words:
        assert getattr(parse(**{attribute: word}), attribute) == word
    for value in ("", words[0].upper(), "true", f"{words[0]},{words[1]}"):
        assert refused(**{attribute: value}).startswith(f"{option} '{value}' is not allowed: use ")


@pytest.mark.parametrize(
    ("value", "driver", "gpu"),
    [
        ("none", False, False),
        ("driver", True, False),
        ("gpu", False, True),
        ("all", True, True),
    ],
)
def test_what_the_machine_may_be_rebooted_for(value, driver, gpu):
    options = parse(auto_reboot=value)
    assert (options.may_reboot_for_driver, options.may_reboot_for_gpu) == (driver, gpu)


def test_quarantine_limit_percent():
    for value in (1, 50, "100"):
        found = parse(quarantine_limit_percent=value)
        assert found.quarantine_limit_percent == int(value)
    for value in (0, 101, "50%", ""):
        assert refused(quarantine_limit_percent=value) == (
            f"quarantine-limit-percent '{value}' is out of range: use 1 to 100"
        )


def test_gpu_metrics_port():
    for value in (0, 1, "9400", 65535):
        assert parse(gpu_metrics_port=value).gpu_metrics_port == int(value)
    for value in (-1, 65536, 2222, 7777, "", "http"):
        said = refused(gpu_metrics_port=value)
        assert said.startswith(f"gpu-metrics-port '{value}' cannot be used: use 0 to 65535 except")


def test_the_metrics_have_no_port_of_the_units_own_web():
    assert parse(gpu_metrics_port=8080).gpu_metrics_port == 8080
    assert refused(gpu_metrics_port=8080, deployment_mode="all").endswith("8888, 8080")
    ports = {"gpu_metrics_port": 335, "web_port": 335}
    assert refused(**ports, deployment_mode="all").startswith("gpu-metrics-port '335' cannot")


@pytest.mark.parametrize("value", [0, 1, 128, "128", " 128 "])
def test_gpus_per_task(value):
    assert parse(gpus_per_task=value).gpus_per_task == int(value)


@pytest.mark.parametrize("value", ["", -1, 129, 10**30, "1e2", "0x10", "all", "²", "1\n2"])
def test_bad_gpus_per_task(value):
    text = refused(gpus_per_task=value)
    assert text.startswith("gpus-per-task '")
    assert text.endswith("' is out of range: use 0 to 128")


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0), ("0s", 0), ("90s", 90), ("4m", 240), ("30m", 1800)]
)
def test_gpu_wait_timeout(value, seconds):
    assert parse(gpu_wait_timeout=value).gpu_wait_timeout == seconds


@pytest.mark.parametrize("value", ["", 240, "-1s", "30m1s", "1h", "4 m", "4M", "٤m", "99999999m"])
def test_bad_gpu_wait_timeout(value):
    assert refused(gpu_wait_timeout=value) == (
        f"gpu-wait-timeout '{value}' is not a duration from 0s to 30m: use one such as 90s, 4m, "
        "2h or 1h30m"
    )


@pytest.mark.parametrize(
    ("text", "engines"),
    [
        ("", Engines()),
        ("podman", Engines(("podman",))),
        (" docker , podman=default,", Engines(("docker", "podman"), ("podman",))),
        ("docker=default,podman=default", Engines(("docker", "podman"), ("docker", "podman"))),
    ],
)
def test_container_engines(text, engines):
    assert parse(container_engines=text).container_engines == engines


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("lxd", "is unknown: use podman, podman=default, docker or docker=default"),
        ("Docker", "is unknown: use podman"),
        ("podman=", "is unknown: use podman"),
        ("podman=true", "is unknown: use podman"),
        ("docker=default", "repeats docker: give it once"),
    ],
)
def test_bad_container_engines(item, why):
    assert refused(container_engines=f"docker,{item}").startswith(
        f"container-engines '{item}' {why}"
    )


@pytest.mark.parametrize(
    ("text", "minimums"),
    [
        ("", Minimums()),
        ("cpus=4", Minimums(cpus=4)),
        ("memory=16GiB", Minimums(memory_gib=16)),
        ("gpu-memory=8GiB", Minimums(gpu_memory_gib=8)),
        ("compute-capability=12.1", Minimums(compute_capability="12.1")),
        ("driver=580.65.06", Minimums(driver_version="580.65.06")),
        (
            "cpus=4, memory=16GiB, gpu-memory=8GiB, compute-capability=7.0, driver=535",
            Minimums(4, 16, 8, "7.0", "535"),
        ),
    ],
)
def test_minimums(text, minimums):
    assert parse(minimums=text).minimums == minimums


KNOWN = "cpus, memory, gpu-memory, compute-capability, driver"


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("ram=4GiB", f"is not a known setting: use {KNOWN}"),
        ("CPUs=4", f"is not a known setting: use {KNOWN}"),
        ("memory", "has no value: use memory=VALUE"),
        ("cpus=8", "repeats cpus: give it once"),
        ("memory=16", "is out of range: use 1GiB to 99999GiB"),
        ("memory=16GB", "is out of range: use 1GiB to 99999GiB"),
        ("memory=0GiB", "is out of range: use 1GiB to 99999GiB"),
        ("gpu-memory=10000GiB", "is out of range: use 1GiB to 9999GiB"),
        ("compute-capability=7", "is not a version: use one such as 7.0"),
        ("compute-capability=sm_70", "is not a version: use one such as 7.0"),
        ("driver=580-server", "is not a version: use one such as 580.65.06"),
        ("driver=58", "is not a version: use one such as 580.65.06"),
        ("driver=580.", "is not a version: use one such as 580.65.06"),
        ("driver=", "is not a version: use one such as 580.65.06"),
    ],
)
def test_bad_minimums(item, why):
    assert refused(minimums=f"cpus=4,{item}") == f"minimums '{item}' {why}"


@pytest.mark.parametrize("number", ["0", "-1", "10000", "²", "4.5", ""])
def test_bad_minimums_of_processors(number):
    said = f"minimums 'cpus={number}' is out of range: use 1 to 9999"
    assert refused(minimums=f"cpus={number}") == said
