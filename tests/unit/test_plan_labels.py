# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The tags of a worker with GPUs: facts, ladders that say "at least", the operator's own."""

import pytest

from plan.gpus import choose
from plan.labels import of_gpus
from tests.unit.situations import gpu, situation, sliced


def tags(found):
    return of_gpus(found, choose(found))


def ladder(found, begin):
    return [tag.removeprefix(begin) for tag in tags(found) if tag.startswith(begin)]


def test_tags_in_their_order():
    options = {"gpu-device-ids": "1", "extra-tags": "fast, gpu,big"}
    found = situation(gpu(0), gpu(1, memory_mib=24576), cuda="12.1", options=options)
    assert tags(found) == (
        "gpu",
        "gpu-type=nvidia",
        "gpu-count=1",
        "gpu-devices=1",
        "gpu-model=a100-sxm4-80gb",
        "gpu-memory=24GiB",
        "cuda=12.1",
        "driver=580",
        "gpu-count>=1",
        "gpu-memory>=8GiB",
        "gpu-memory>=16GiB",
        "gpu-memory>=24GiB",
        "cuda>=12.0",
        "cuda>=12.1",
        "fast",
        "big",
    )


def test_facts_that_are_unknown_or_differ_are_left_out_of_the_ladders_too():
    mixed = situation(gpu(0), gpu(1, model="Tesla T4", memory_mib=0), driver="", cuda="")
    expected = ("gpu", "gpu-type=nvidia", "gpu-count=2", "gpu-count>=1", "gpu-count>=2")
    assert tags(mixed) == expected


def test_memory_is_that_of_the_smallest():
    found = situation(gpu(0), gpu(1, memory_mib=15360))
    assert "gpu-memory=16GiB" in tags(found)
    assert ladder(found, "gpu-memory>=") == ["8GiB", "16GiB"]


@pytest.mark.parametrize(
    ("memory_mib", "last"),
    [
        (7168, None),
        (8192, "8GiB"),
        (11264, "8GiB"),
        (81559, "80GiB"),
        (95830, "80GiB"),  # sold as 94
        (97871, "96GiB"),
        (143771, "141GiB"),
        (294912, "288GiB"),
        (1 << 20, "288GiB"),
    ],
)
def test_the_memory_ladder_ends_at_the_size_as_sold(memory_mib, last):
    steps = ladder(situation(gpu(0, memory_mib=memory_mib)), "gpu-memory>=")
    assert steps[-1:] == ([last] if last else [])
    assert steps == sorted(steps, key=lambda step: int(step[:-3]))


TWELVE = [f"12.{minor}" for minor in range(10)]


@pytest.mark.parametrize(
    ("cuda", "steps"),
    [
        ("", []),
        ("unknown", []),
        ("11.8", []),
        ("12.0", ["12.0"]),
        ("12.4", TWELVE[:5]),
        ("13.0", [*TWELVE, "13.0"]),
        ("13.2", [*TWELVE, "13.0", "13.1", "13.2"]),
        # Newer than what was known in its time: up to what the driver says of itself.
        ("13.7", [*TWELVE, *(f"13.{minor}" for minor in range(8))]),
        ("14.1", [*TWELVE, *(f"13.{minor}" for minor in range(5)), "14.0", "14.1"]),
        ("15.0", [*TWELVE, *(f"13.{minor}" for minor in range(5)), "14.0", "15.0"]),
    ],
)
def test_the_cuda_ladder_has_every_release_that_the_driver_can_run(cuda, steps):
    assert ladder(situation(gpu(0), cuda=cuda), "cuda>=") == steps


@pytest.mark.parametrize(
    ("gpus", "count", "memory"),
    [
        ([sliced(0, "1g.10gb", "3g.40gb")], 2, "10"),
        ([sliced(0, "1g.10gb"), gpu(1)], 2, "10"),
        ([sliced(0, "3g.40gb"), gpu(1, memory_mib=24576)], 2, "24"),
        ([sliced(0, "1g.10gb+me"), sliced(1, "1c.2g.20gb")], 2, "10"),
        ([sliced(0, *["1g.5gb"] * 7)], 7, "5"),
        ([sliced(0, "1g.10gb", "a name of tomorrow")], 2, None),
    ],
)
def test_with_mig_a_tag_tells_what_one_task_is_given(gpus, count, memory):
    found = situation(*gpus)
    assert f"gpu-count={count}" in tags(found)
    assert ladder(found, "gpu-count>=") == [str(number + 1) for number in range(count)]
    assert ladder(found, "gpu-memory=") == ([f"{memory}GiB"] if memory else [])
    assert bool(ladder(found, "gpu-memory>=")) == (memory not in (None, "5"))


@pytest.mark.parametrize(
    ("vendor", "model", "driver", "begin"),
    [
        ("amd", "AMD Instinct MI300X", "6.12.12", "instinct-mi300x"),
        ("amd", "AMD Radeon RX 7900 XT/7900 XTX", "", "radeon-rx-7900-xt-7900-xtx"),
        ("intel", "Intel Arc A770", "", "arc-a770"),
        ("intel", "Intel(R) Data Center GPU Max 1550", "", "data-center-gpu-max-1550"),
    ],
)
def test_tags_of_other_vendors(vendor, model, driver, begin):
    card = gpu(0, vendor=vendor, model=model, memory_mib=16368, minor=-1)
    assert tags(situation(card, vendor=vendor, driver=driver, cuda="")) == (
        "gpu",
        f"gpu-type={vendor}",
        "gpu-count=1",
        f"gpu-model={begin}",
        "gpu-memory=16GiB",
        *(["driver=6"] if driver else []),
        "gpu-count>=1",
        "gpu-memory>=8GiB",
        "gpu-memory>=16GiB",
    )


@pytest.mark.parametrize("model", ["", "???", "NVIDIA (?)"])
def test_a_model_without_a_name_has_no_empty_tag(model):
    assert "gpu-model=" not in tags(situation(gpu(0, model=model)))


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"),
        ("Tesla T4", "tesla-t4"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("NVIDIA RTX PRO 6000 Blackwell (Max-Q),x", "rtx-pro-6000-blackwell-max-q-x"),
    ],
)
def test_model_tag(model, tag):
    assert f"gpu-model={tag}" in tags(situation(gpu(0, model=model)))


@pytest.mark.parametrize(
    ("name", "reported", "sold"),
    [
        ("T4", 15360, 16),
        ("L4", 23034, 24),
        ("A10", 22731, 24),
        ("A10G", 23028, 24),
        ("A40, L40S", 46068, 48),
        ("RTX A6000", 49140, 48),
        ("V100", 16384, 16),
        ("V100-32", 32768, 32),
        ("P100", 16280, 16),
        ("K80", 11441, 12),
        ("A30", 24576, 24),
        ("A100-80", 81920, 80),
        ("A100-40", 40536, 40),
        ("A100-40 older driver", 40960, 40),
        ("H100", 81559, 80),
        ("H100 NVL", 95830, 94),
        ("GH200, RTX PRO 6000", 97871, 96),
        ("H200", 143771, 141),
        ("B200", 183359, 180),
        ("RTX 4090", 24564, 24),
        ("RTX 5090", 32607, 32),
        ("RTX 3080", 10240, 10),
        ("2080 Ti", 11264, 11),
        ("RTX 3060", 12288, 12),
        ("A4500", 20470, 20),
        ("A500", 4096, 4),
        ("a slice of a virtual one", 7168, 7),
    ],
)
def test_memory_is_told_as_sold(name, reported, sold):
    assert f"gpu-memory={sold}GiB" in tags(situation(gpu(0, memory_mib=reported)))


SOLD = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 288)


@pytest.mark.parametrize("gib", SOLD)
def test_a_size_that_is_sold_stays_it(gib):
    for reported in (gib * 1024, gib * 1024 * 99 // 100):
        assert f"gpu-memory={gib}GiB" in tags(situation(gpu(0, memory_mib=reported)))
