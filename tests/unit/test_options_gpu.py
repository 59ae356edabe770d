# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The options that say which GPUs there are for tasks and who gets them for how long."""

import pytest
import yaml

from options.values import HOST_PACKAGES
from tests.unit.situations import ROOT, parse, refused


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
        f"gpu-device-ids '{item}' is no id of a GPU: use all, or indexes, UUIDs"
    )


def test_an_index_of_ten_thousand_digits_is_only_refused():
    assert "..." in refused(gpu_device_ids="9" * 10_000)


@pytest.mark.parametrize("vendor", ["auto", "nvidia", "amd", "intel"])
def test_gpu_vendor(vendor):
    assert parse(gpu_vendor=vendor).gpu_vendor == vendor


@pytest.mark.parametrize("vendor", ["", "nvida", "NVIDIA", "amd,intel"])
def test_bad_gpu_vendor(vendor):
    assert refused(gpu_vendor=vendor) == (
        f"gpu-vendor '{vendor}' is unknown: use auto, nvidia, amd, intel"
    )


def test_gpu_allocation():
    assert parse(gpu_allocation="shared").gpu_allocation == "shared"
    for value in ("", "Exclusive", "none", "shared,exclusive"):
        assert refused(gpu_allocation=value) == (
            f"gpu-allocation '{value}' is unknown: use exclusive, shared"
        )


def test_privileged_tasks():
    assert parse(privileged_tasks="gpu").privileged_tasks == "gpu"
    for value in ("", "GPU", "yes", "no"):
        assert refused(privileged_tasks=value) == (
            f"privileged-tasks '{value}' is unknown: use no-gpu, gpu"
        )


WORDS = {
    "gpu-health": ("on", "observe", "off"),
    "job-log": ("on", "faults", "off"),
    "gpu-unused": ("warn", "ignore", "fail"),
    "gpu-recovery": ("none", "reset", "reboot"),
}


@pytest.mark.parametrize("option", WORDS)
def test_the_words_of_the_watch(option):
    attribute, words = option.replace("-", "_"), WORDS[option]
    assert getattr(parse(), attribute) == words[0]
    for word in words:
        assert getattr(parse(**{attribute: word}), attribute) == word
    for value in ("", words[0].upper(), "true", f"{words[0]},{words[1]}"):
        assert refused(**{attribute: value}).startswith(f"{option} '{value}' is unknown: use ")


def test_max_quarantined():
    for value in (1, 50, "100"):
        assert parse(max_quarantined=value).max_quarantined == int(value)
    for value in (0, 101, "50%", ""):
        assert refused(max_quarantined=value) == (
            f"max-quarantined '{value}' is out of range: use 1 to 100"
        )


def test_gpu_metrics_port():
    for value in (0, 1, "9400", 65535):
        assert parse(gpu_metrics_port=value).gpu_metrics_port == int(value)
    for value in (-1, 65536, 2222, 7777, "", "http"):
        said = refused(gpu_metrics_port=value)
        assert said.startswith(f"gpu-metrics-port '{value}' can't be used: use 0 to 65535 but not")


def test_the_metrics_have_no_port_of_the_units_own_web():
    assert parse(gpu_metrics_port=8080).gpu_metrics_port == 8080
    assert refused(gpu_metrics_port=8080, deployment_mode="all").endswith("8888, 8080")
    ports = {"gpu_metrics_port": 335, "web_port": 335}
    assert refused(**ports, deployment_mode="all").startswith("gpu-metrics-port '335' can't")


NUMBERS = {"gpus-per-task": 128, "gpu-wait-timeout": 1800, "hijack-gpu-limit": 1440}


@pytest.mark.parametrize("option", NUMBERS)
def test_numbers_from_nothing_to_their_most(option):
    attribute, most = option.replace("-", "_"), NUMBERS[option]
    for value in (0, 1, most, str(most), f" {most} "):
        assert getattr(parse(**{attribute: value}), attribute) == int(value)


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("value", ["", -1, 1801, 10**30, "1e2", "0x10", "all", "²", "1\n2"])
def test_numbers_out_of_range(option, value):
    text = refused(**{option.replace("-", "_"): value})
    assert text.startswith(f"{option} '")
    assert text.endswith(f"' is out of range: use 0 to {NUMBERS[option]}")


def test_one_more_than_the_most_is_too_many():
    for option, most in NUMBERS.items():
        assert f"'{most + 1}' is out of range" in refused(**{option.replace("-", "_"): most + 1})


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("min_gpu_memory_gib", 0, 0),
        ("min_gpu_memory_gib", 16, 16),
        ("min_compute_capability", "7.0", "7.0"),
        ("min_compute_capability", "12.1", "12.1"),
        ("min_driver_version", "535", "535"),
        ("min_driver_version", "580.65.06", "580.65.06"),
        ("min_cpus", 0, 0),
        ("min_cpus", 4, 4),
        ("min_memory_gib", 0, 0),
        ("min_memory_gib", 16, 16),
    ],
)
def test_minimums(option, text, value):
    assert getattr(parse(**{option: text}).minimums, option.removeprefix("min_")) == value


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("min_compute_capability", "7"),
        ("min_compute_capability", "sm_70"),
        ("min_compute_capability", "7.0,8.0"),
        ("min_driver_version", "580-server"),
        ("min_driver_version", ">=535"),
        ("min_driver_version", "58"),
        ("min_driver_version", "580."),
    ],
)
def test_bad_minimums(option, text):
    assert f"'{text}' is no minimum: use a number such as " in refused(**{option: text})


@pytest.mark.parametrize(
    ("option", "most"),
    [("min-gpu-memory-gib", 9999), ("min-cpus", 9999), ("min-memory-gib", 99999)],
)
def test_bad_minimums_of_size(option, most):
    for number in (-1, most + 1):
        text = f"{option} '{number}' is out of range: use 0 to {most}"
        assert refused(**{option.replace("-", "_"): number}) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), (" jq ,nvtop,,jq", ("jq", "nvtop")), (",".join(HOST_PACKAGES), HOST_PACKAGES)],
)
def test_host_packages(text, names):
    assert parse(host_packages=text).host_packages == names


@pytest.mark.parametrize("item", ["nvidia-driver-580", "jq=1.6", "./x.deb", "-y", "JQ", "jq tmux"])
def test_bad_host_packages(item):
    text = refused(host_packages=f"htop,{item}")
    assert text.startswith(f"host-packages '{item}' is none of those that can be had: use btop, ")
    assert text.endswith(", zstd")


def test_the_option_tells_all_packages_that_can_be_had():
    told = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]["host-packages"]
    listed = told["description"].partition(": ")[2].partition(".")[0]
    assert listed.split() == [*(f"{name}," for name in sorted(HOST_PACKAGES)[:-1]), "zstd"]
