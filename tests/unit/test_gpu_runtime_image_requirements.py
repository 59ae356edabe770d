# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""NVIDIA_REQUIRE_*: libnvidia-container's grammar, who is refused, and that no text does harm."""

import json
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from gpu_runtime import image_requirements as require
from gpu_runtime import task_call as wrapper
from gpu_runtime.environment import Requirement, Variables
from gpu_runtime.policy import Policy
from gpu_runtime.refusal import Refused
from tests.unit.grants import AMD, content
from tests.unit.refusals import refuses
from tests.unit.wrapper_rig import GPUS, Rig

BORDER = "ATC_EXTERNAL_URL=http://x"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (a@b)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Aug 27 17:48:32 UTC 2025\n"
FACTS = {"cuda": "12.2", "driver": "535.183.01", "arch": "8.0", "brand": "nvidia"}

# The variable of nvidia/cuda:12.4.1-base-ubuntu22.04, of which it has 31 alternatives.
BRANDS = (
    "tesla unknown nvidia nvidiartx geforce geforcertx quadro quadrortx titan titanrtx".split()
)
OF_CUDA_12_4 = " ".join(
    ["cuda>=12.4"]
    + [
        f"brand={brand},driver>={branch},driver<{branch + 1}"
        for branch in (470, 525, 535)
        for brand in BRANDS
    ]
)


def policy(**changes):
    """Two A100, unless said otherwise, and what the policy knows of the driver."""
    gpus = [{**gpu, "arch": "8.0", "brand": "nvidia"} for gpu in GPUS]
    return Policy(content(**{"driver": "535.183.01", "cuda": "12.2", "gpus": gpus, **changes}))


@pytest.fixture(autouse=True)
def loaded(monkeypatch, tmp_path):
    """What the kernel shows of its driver: at first nothing."""
    path = tmp_path / "version"
    monkeypatch.setattr(require, "_LOADED", str(path))
    return path


def unfit(found, *env, own=()):
    required = Variables([*env, BORDER]).required()
    return require.unfit(found, required, "task", lambda: [*own]) if required else {}


def holds(text, **facts):
    return require._holds(text, {**FACTS, **facts})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The one example of NVIDIA's guide (docker-specialized, "Constraints").
        ("cuda>=11.0 driver>=450", True),
        ("cuda>=12.4 driver>=450", True),
        ("cuda>=12.4 driver>=550", False),
        # nvidia-container-toolkit 1.20 internal/requirements/constraints/factory_test.go, for
        # CUDA 12.2 and arch 8.0
        ("", True),
        ("cuda>=11.6", True),
        ("cuda>11.6", True),
        ("cuda<=11.6", False),
        ("cuda<11.6", False),
        ("cuda=11.6", False),
        ("cuda!=11.6", True),
        ("cuda>=11.6 arch=5.3", True),
        ("cuda>=11.6,arch=5.3", False),
        ("cuda<13.6 cuda>=11.6,arch=5.3", True),
        # what images say
        (OF_CUDA_12_4, True),
        ("cuda>=9.0 driver>=384,driver<385 driver>=410,driver<411", True),
        ("brand=tesla,driver>=470,driver<471 brand=nvidia,driver>=535,driver<536", True),
        ("brand=tesla,driver>=535,driver<536", False),
        # dsl.c, letter by letter: dsl_compare_version
        ("cuda=12.2.0", True),
        ("cuda=12.2.0.0", True),
        ("cuda=012.02", True),
        ("cuda=12..2", True),
        ("cuda>12.2.0", False),
        ("cuda<12.2.1", True),
        ("cuda>=12.2.1", False),
        ("cuda=12", False),
        ("cuda>12", True),
        ("cuda>12.10", False),
        ("driver>=535.183.1,driver<=535.183.01", True),
        ("driver<99999999999999999999999999", True),
        ("cuda!12.2", False),
        ("cuda!11", True),
        # names and brands in any case, evaluate_rule's empty parts
        ("CUDA>=12.0,Brand=NVIDIA", True),
        ("brand!=geforce", True),
        ("brand!nvidia", False),
        ("  cuda>=12.0  ", True),
        (",,cuda>=12.0,,", True),
        ("cuda>=99 , ", False),
        (",", True),
        # What comes after an alternative that holds is not read.
        ("cuda>=12.0 !?", True),
    ],
)
def test_the_grammar_of_libnvidia_container(text, expected):
    assert holds(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("cuda", "notvalid", "foo=45", ">=12.0", "cuda>=", "cuda==12.2", "cuda=>12.2"),
        *("cuda>=12.x", "cuda>=v12", "cuda>=.5", "cuda>= 12.0", "arch>=sm_80", "brand>tesla"),
        *("cuda>=99 foo=bar", "cuda>=12.0,foo=bar", "cuda>=12.0\tdriver>=1", "cuda>=١٢", "\ud800"),
        *("cuda<>12", "cuda>=12>=13"),
    ],
)
def test_what_libnvidia_container_calls_invalid(text):
    with pytest.raises(ValueError, match=r"^.+$"):
        holds(text)
    with refuses("requirement-invalid") as caught:
        unfit(policy(), f"NVIDIA_REQUIRE_X={text}")
    assert "which is not a condition on cuda, driver, arch or brand. Correct it" in str(
        caught.value
    )


@pytest.mark.parametrize("rule", ["cuda", "driver", "arch", "brand"])
def test_what_is_not_known_holds(rule):
    assert not holds(f"{rule}=7.5")
    assert holds(f"{rule}=7.5", **{rule: ""})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        # nvidia-container-toolkit 1.20 internal/config/image/cuda_image_test.go
        (["NVIDIA_REQUIRE_JETPACK=csv-mounts=all"], []),
        (["NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=base-only"], []),
        (["NVIDIA_REQUIRE_CUDA=cuda>=11.6"], ["cuda>=11.6"]),
        (
            ["NVIDIA_REQUIRE_CUDA=cuda>=11.6", "NVIDIA_REQUIRE_BRAND=brand=tesla"],
            ["cuda>=11.6", "brand=tesla"],
        ),
        (["NVIDIA_REQUIRE_CUDA=cuda>=11.6", "NVIDIA_DISABLE_REQUIRE=true"], []),
        (["CUDA_VERSION=11.6", "NVIDIA_DISABLE_REQUIRE=true"], []),
        # The major version of an old image's is what its driver must have.
        (["CUDA_VERSION=11.6"], ["cuda>=11.0"]),
        (["CUDA_VERSION=v13"], ["cuda>=13.0"]),
        (["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA="], ["", "cuda>=12.0"]),
        (["CUDA_VERSION=9.0.116"], ["cuda>=9.0"]),
        (["CUDA_VERSION=10.2"], ["cuda>=10.2"]),
        (["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"], ["cuda>=12.4"]),
        *(
            (["CUDA_VERSION=" + text], [])
            for text in ("", "cu124", "foo", "-9", "9..0", ".5", "٣")
        ),
        ([BORDER, "CUDA_VERSION=13.0"], []),
        # of two of a name the last counts, whoever wrote it
        (["NVIDIA_REQUIRE_CUDA=cuda>=99", BORDER, "NVIDIA_REQUIRE_CUDA=cuda>=1"], ["cuda>=1"]),
        (["NVIDIA_REQUIRE_CUDA=cuda>=99", BORDER, "NVIDIA_DISABLE_REQUIRE=1"], []),
        (
            ["NVIDIA_DISABLE_REQUIRE=1", BORDER, "NVIDIA_DISABLE_REQUIRE=0", "NVIDIA_REQUIRE_A=x"],
            ["x"],
        ),
    ],
)
def test_what_variables_require(env, expected):
    assert [one.text for one in Variables(env).required()] == expected


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_takes_it_for_true(text):
    assert not Variables([f"NVIDIA_DISABLE_REQUIRE={text}", "NVIDIA_REQUIRE_A=x"]).required()


@pytest.mark.parametrize("text", ["", "0", "yes", "on", "tRUE", " true", "true ", "2", "false"])
def test_go_does_not_take_it_for_true(text):
    assert Variables([f"NVIDIA_DISABLE_REQUIRE={text}", "NVIDIA_REQUIRE_A=x"]).required()


def test_the_refusal_names_what_is_required_and_what_is_there(loaded):
    loaded.write_text(CLOSED.format("535.183.01"))
    with refuses("requirement-unmet") as caught:
        unfit(policy(), "NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    assert str(caught.value) == (
        "this task's image requires cuda>=13.0 (NVIDIA_REQUIRE_CUDA); this worker has CUDA 12.2, "
        "NVIDIA's driver 535.183.01. Use an image that fits, or a worker with a newer driver. If "
        "the image works with this driver anyway, set the param NVIDIA_DISABLE_REQUIRE to true"
    )


def test_the_refusal_of_alternatives_counts_them(loaded):
    loaded.write_text(OPEN.format("550.54.15"))
    found = policy(driver="550.54.15", cuda="12.3")
    with pytest.raises(Refused) as caught:
        unfit(found, f"NVIDIA_REQUIRE_CUDA={OF_CUDA_12_4}")
    assert str(caught.value).startswith(
        "this task's image requires cuda>=12.4 or one of 30 other combinations "
        "(NVIDIA_REQUIRE_CUDA); this worker has CUDA 12.3, NVIDIA's driver 550.54.15, GPUs of "
        "brand nvidia. "
    )


def test_the_refusal_of_what_the_author_requires_does_not_name_the_image():
    required = Variables(["NVIDIA_REQUIRE_A=cuda>=1", BORDER, "NVIDIA_REQUIRE_B=driver>=999"])
    with pytest.raises(Refused, match=r"^this task requires driver>=999 "):
        require.unfit(policy(), required.required(), "task", list)


@pytest.mark.parametrize("line", [OPEN, CLOSED])
def test_another_driver_than_the_policys_counts_and_its_cuda_is_not_known(loaded, line):
    loaded.write_text(line.format("580.95.05"))
    assert unfit(policy(), "NVIDIA_REQUIRE_A=cuda>=13.0") == {}
    assert unfit(policy(), "NVIDIA_REQUIRE_A=driver>=580,driver<581") == {}
    with pytest.raises(Refused, match=r"this worker has NVIDIA's driver 580\.95\.05\. "):
        unfit(policy(), "NVIDIA_REQUIRE_A=driver>=590")


def test_a_driver_that_cannot_be_asked_is_no_missing_one(loaded):
    loaded.mkdir()
    with pytest.raises(IsADirectoryError):
        unfit(policy(), "NVIDIA_REQUIRE_A=driver>=1")


def test_a_policy_from_before_refuses_nobody():
    before = Policy(content())
    assert unfit(before, "NVIDIA_REQUIRE_A=cuda>=99,driver>=999,arch>=99,brand=x") == {}


@pytest.mark.parametrize(
    ("own", "brand", "is_refused"),
    [
        ([], "nvidia", True),
        (["580.65.06", "1"], "nvidia", False),
        (["580.65.06"], "", False),
        (["580.65.06"], "geforcertx", True),
        (["580.65.06"], "titan", True),
        (["525.60.13"], "tesla", True),
        (["", "x", "1"], "tesla", True),
    ],
)
def test_a_compatibility_package_lifts_what_is_required_of_cuda(own, brand, is_refused):
    found = policy(gpus=[{**GPUS[0], "arch": "8.0", "brand": brand}])
    if is_refused:
        with refuses("requirement-unmet"):
            unfit(found, "NVIDIA_REQUIRE_CUDA=cuda>=13.0", own=own)
    else:
        assert unfit(found, "NVIDIA_REQUIRE_CUDA=cuda>=13.0", own=own) == {}
        with pytest.raises(Refused, match="driver>=999"):
            unfit(found, "NVIDIA_REQUIRE_CUDA=cuda>=13.0,driver>=999", own=own)


def test_of_different_gpus_those_that_lack_it_are_unfit():
    gpus = [{**GPUS[0], "arch": "7.5", "brand": "tesla"}, {**GPUS[1], "arch": "8.0"}]
    assert unfit(policy(gpus=gpus), "NVIDIA_REQUIRE_ARCH=arch>=8.0") == {
        GPUS[0]["uuid"]: "unfit: NVIDIA_REQUIRE_ARCH is arch>=8.0"
    }


@pytest.fixture
def rig(tmp_path):
    found = Rig(tmp_path / "rig")
    source = found.lib / "image_requirements.py"
    fake = tmp_path / "loaded"
    fake.write_text(CLOSED.format("535.183.01"))
    text = source.read_text()
    assert '"/proc/driver/nvidia/version"' in text
    source.write_text(text.replace("/proc/driver/nvidia/version", str(fake)))
    return found


def with_image(rig, name, *image):
    rig.spec(name)
    config = json.loads(rig.config.read_text())
    config["process"]["env"][:0] = image
    rig.config.write_text(json.dumps(config, separators=",:"))
    return config


GOOD = {"driver": "535.183.01", "cuda": "12.2"}


def test_a_create_is_refused_before_it_has_a_lease(rig):
    rig.policy(**GOOD, wait_timeout=600)
    rig.hold(other=[gpu["uuid"] for gpu in GPUS])
    with_image(rig, "task", "NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    assert rig.create() == 1
    assert rig.code == "requirement-unmet"
    assert list(rig.holders) == ["other"]


def test_a_create_whose_image_fits_goes_on(rig):
    rig.policy(**GOOD)
    with_image(rig, "task", f"NVIDIA_REQUIRE_CUDA={OF_CUDA_12_4}", "CUDA_VERSION=12.4.1")
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def test_a_task_without_a_gpu_may_require_what_it_will(rig):
    rig.policy(**GOOD)
    with_image(rig, "task-none", "NVIDIA_REQUIRE_CUDA=cuda>=99")
    assert rig.create() == 42
    assert rig.ran[0] == "runc"


def test_other_makers_gpus_have_no_such_requirement():
    env = ["NVIDIA_REQUIRE_CUDA=cuda>=99", BORDER]
    assert wrapper.unfit(AMD, Variables(env), {}, "/b") == {}


def test_a_gpu_that_the_image_cannot_use_is_passed_over(rig):
    gpus = [{**GPUS[0], "arch": "7.5"}, {**GPUS[1], "arch": "8.0"}]
    rig.policy(**GOOD, gpus=gpus)
    with_image(rig, "task", "NVIDIA_REQUIRE_ARCH=arch>=8.0")
    assert rig.create() == 42
    assert rig.holders["ID"]["gpus"] == [GPUS[1]["uuid"]]


def test_more_gpus_than_the_image_can_use_are_refused_with_the_reason(rig):
    gpus = [{**GPUS[0], "arch": "7.5"}, {**GPUS[1], "arch": "8.0"}]
    rig.policy(**GOOD, gpus=gpus, gpus_per_task=2)
    with_image(rig, "task", "NVIDIA_REQUIRE_ARCH=arch>=8.0")
    assert rig.create() == 1
    assert rig.code == "too-few-gpus"
    assert "is unfit: NVIDIA_REQUIRE_ARCH is arch>=8.0" in rig.refusal


@pytest.mark.parametrize("way", ["/usr/local/cuda-13.0", "../../../usr/local/cuda-13.0"])
def test_an_image_with_a_compatibility_package_is_given_its_gpu(rig, tmp_path, way):
    """The package's files as they lie in nvidia/cuda:13.0.1-base-ubuntu24.04."""
    live = tmp_path / "volumes" / "live"
    root = live / "image" / "volume" / "rootfs"
    compat = root / "usr/local/cuda-13.0/compat"
    compat.mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to(way)
    rig.policy(**GOOD)
    config = with_image(rig, "task", "NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    config["root"]["path"] = str(root)
    for mount in config["mounts"]:
        if mount["destination"].startswith("/tmp/build/"):
            mount["source"] = str(live / "work" / "volume")
    rig.config.write_text(json.dumps(config, separators=",:"))
    assert rig.create() == 1
    rig.log.unlink()
    (compat / "libcuda.so.580.82.07").write_text("")
    (compat / "libcuda.so.1").symlink_to("libcuda.so.580.82.07")
    assert rig.create() == 42
    assert rig.ran[0] == "nvidia-container-runtime"


def refusal_of(call):
    """What a call is refused with; empty if it is not."""
    try:
        call()
    except Refused as refusal:
        return str(refusal)
    return ""


@settings(deadline=None, database=None, suppress_health_check=[*HealthCheck], max_examples=300)
@given(
    name=some.text(max_size=20),
    text=some.text(max_size=60) | some.text(alphabet="cudarivebn<>=!,. 0129\x1b", max_size=80),
)
def test_no_text_does_harm(name, text):
    required = [Requirement(f"NVIDIA_REQUIRE_{name}", text, authors=False)]
    said = refusal_of(lambda: require.unfit(policy(), required, "task", list))
    assert said == "" or said.isprintable()
    assert len(said) < 700


@pytest.mark.parametrize(
    "text",
    [
        "cuda>=" + "9" * 100_000,
        "cuda>=99 " * 10_000,
        "cuda>=12.0," * 10_000 + "cuda>=99",
        "cuda>=99" + "!" * 100_000,
        "," * 100_000,
        " " * 100_000 + "x",
        "x" * 100_000,
        "cuda>=" + "0." * 50_000 + "1",
        "".join(random.Random(1).choices("cuda<>=!,. 0129", k=100_000)),
    ],
)
def test_long_texts_take_no_time(text):
    began = time.monotonic()
    assert len(refusal_of(lambda: unfit(policy(), f"NVIDIA_REQUIRE_CUDA={text}"))) < 700
    assert time.monotonic() - began < 1
