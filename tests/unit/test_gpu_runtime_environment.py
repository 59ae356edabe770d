# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A container's variables: who wrote which, what an author may narrow, which doors are shut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from gpu_runtime import environment
from gpu_runtime.environment import DOORS, LOADER, NARROWING, Variables
from gpu_runtime.refusal import Refused
from tests.unit.refusals import refuses

BORDER = "ATC_EXTERNAL_URL=http://127.0.0.1:8080"
IDS = ["GPU-00000000-1111-2222-3333-444444444444", "MIG-0000000a-5555-6666-7777-888888888888"]
OURS = {"NVIDIA_VISIBLE_DEVICES": IDS[0], "GPU_COUNT": "1", "GPU_CI_DEVICES": "[]"}
# Every switch that the toolkits have, by hand: what a table forgets, it can't test.
SWITCHES = [
    *("NVIDIA_IMEX_CHANNELS", "NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"),
    *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "AMD_VISIBLE_DEVICES"),
    *("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_", "DOCKER_RESOURCE_NVIDIA_A100"),
]
LOADERS = ["LD_PRELOAD", "LD_AUDIT", "LD_DEBUG_OUTPUT", "GLIBC_TUNABLES", "GCONV_PATH"]
NARROWERS = [
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
]
PATIENT = settings(
    deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300
)
NAMES = some.sampled_from(
    [*OURS, *NARROWING, *DOORS, *LOADERS, "DOCKER_RESOURCE_GPU", "ATC_EXTERNAL_URL", "MINE", ""]
)
VALUES = some.sampled_from(["=", "=1", "=a=b", "=0,GPU-0", "", "=\ud800", "=" + "9" * 5000])
ENTRIES = some.lists(some.builds("{}{}".format, NAMES, VALUES))


def one_border(entries):
    return sum(entry.startswith("ATC_EXTERNAL_URL=") for entry in entries) < 2


@pytest.mark.parametrize("name", SWITCHES)
def test_a_door_is_shut_for_image_and_author(name):
    entries = [f"{name}=all", "A=1", BORDER, f"{name}=all", "B=2", f"{name}=enabled"]
    assert Variables(entries).with_(OURS)[:3] == ["A=1", BORDER, "B=2"]
    assert Variables(entries).with_({}) == ["A=1", BORDER, "B=2"]


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_variable_goes_where_it_is_unwanted(name):
    entries = [f"{name}=/evil.so", BORDER, f"{name}=/evil.so"]
    assert Variables(entries).with_({}, LOADER) == [BORDER]
    assert Variables(entries).with_({}) == entries


@pytest.mark.parametrize("name", NARROWERS)
def test_who_wrote_it_decides_about_narrowing(name):
    both = [f"{name}=-1", BORDER, f"{name}=0"]
    assert Variables(both).with_({}) == both[1:]
    assert Variables([f"{name}=0"]).with_({}) == [], "without a border all are the image's"


def test_the_images_number_is_no_request():
    assert Variables(["GPU_COUNT=8", BORDER, "A=b"]).asked() is None
    assert Variables(["GPU_COUNT=8"]).asked() is None
    assert Variables(["GPU_COUNT=8", BORDER, "GPU_COUNT=2"]).asked() == "2"
    assert Variables([BORDER, "GPU_COUNT="]).asked() == ""


def test_the_last_of_an_authors_numbers_counts():
    assert Variables([BORDER, "GPU_COUNT=2", "GPU_COUNT=3", "GPU_COUNTER=9"]).asked() == "3"


def test_a_word_that_is_no_border():
    entries = ["ATC_EXTERNAL_URL", "XATC_EXTERNAL_URL=1", "CUDA_VISIBLE_DEVICES=0", BORDER]
    assert Variables(entries).with_({}) == ["XATC_EXTERNAL_URL=1", BORDER]


def test_two_borders_are_refused():
    with refuses("reserved-variable") as caught:
        Variables(["ATC_EXTERNAL_URL=a", "ATC_EXTERNAL_URL=b"])
    assert "ATC_EXTERNAL_URL is reserved by the CI system" in str(caught.value)


@pytest.mark.parametrize("name", NARROWERS)
@pytest.mark.parametrize(
    ("value", "count"),
    [
        *(("0", 1), ("0,1", 2), ("1", 2), (" 1 , 0 ", 2), ("0.1", 1), ("", 1), ("-1", 1)),
        *(("NoDevFiles", 1), (IDS[0], 2), (IDS[1].lower(), 2), ("GPU-00000000", 2), ("00", 1)),
        ("0,-1", 1),
    ],
)
def test_an_author_may_narrow(name, value, count):
    entries = [BORDER, f"{name}={value}"]
    variables = Variables(entries)
    variables.check_narrowing(count, IDS)
    assert variables.with_({}) == entries


@pytest.mark.parametrize("name", NARROWERS)
@pytest.mark.parametrize(
    ("value", "item"),
    [
        *(("2", "2"), ("0,7", "7"), ("1.0,2.0", "2.0"), ("99999999999", "99999999999")),
        *(("GPU-00000001", "GPU-00000001"), ("all", "all"), ("0x0", "0x0"), ("-2", "-2")),
        *((f"{IDS[0]}0", f"{IDS[0]}0"), ("\u0660", "\u0660"), ("0;1", "0;1"), ("+0", "+0")),
    ],
)
def test_an_author_names_more(name, value, item):
    with refuses("gpu-index-invalid") as caught:
        Variables([BORDER, f"{name}={value}"]).check_narrowing(2, IDS)
    assert str(caught.value).startswith(f"{name}={value}: '{item}' does not exist, because ")


def test_numbers_without_end_are_refused_in_few_words():
    with refuses("gpu-index-invalid") as caught:
        Variables([BORDER, "CUDA_VISIBLE_DEVICES=" + "1" * 5000]).check_narrowing(1, [])
    assert len(str(caught.value)) < 400


def test_ids_that_are_not_known_yet_pass_and_indexes_do_not():
    variables = Variables([BORDER, "CUDA_VISIBLE_DEVICES=GPU-77,0"])
    variables.check_narrowing(1, [])
    with refuses("gpu-index-invalid"):
        variables.check_narrowing(1, IDS[:1])
    with refuses("gpu-index-invalid"):
        Variables([BORDER, "HIP_VISIBLE_DEVICES=0,1"]).check_narrowing(1, [])


def test_what_an_image_names_is_never_refused():
    Variables(["CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", BORDER]).check_narrowing(1, IDS[:1])


@PATIENT
@given(ENTRIES.filter(one_border), some.sampled_from([(), LOADER]))
def test_any_variables(entries, unwanted):
    after = Variables(entries).with_(OURS, unwanted)
    names = [entry.partition("=")[0] for entry in after]
    for name, value in OURS.items():
        assert [entry for entry in after if entry.startswith(f"{name}=")] == [f"{name}={value}"]
    assert not environment.DOORS.intersection(names)
    assert not [name for name in names if unwanted and name.startswith(unwanted)]
    assert all("=" in entry and not entry.startswith("=") for entry in after)
    kept = after[: -len(OURS)]
    remaining = iter(entries)
    assert all(entry in remaining for entry in kept), "order and text of what stays are kept"
    mine = [entry for entry in entries if entry.startswith("MINE=")]
    assert [entry for entry in kept if entry.startswith("MINE=")] == mine
    assert Variables(after).with_(OURS, unwanted) == after


@PATIENT
@given(ENTRIES.filter(one_border), some.integers(0, 3))
def test_any_narrowing_is_followed_or_refused(entries, count):
    try:
        Variables(entries).check_narrowing(count, IDS)
    except Refused:
        return
    after = Variables(entries).with_({})
    named = [entry for entry in after if entry.partition("=")[0] in NARROWING]
    indexes = [
        item for entry in named for item in entry.partition("=")[2].split(",") if item.isdecimal()
    ]
    assert all(len(index) < 10 and int(index) < count for index in indexes)
