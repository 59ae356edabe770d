# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Attackers who want more GPUs than they asked for, and tasks that would silently get none."""

import re

from tests.attacks.attacker import WORK_FOLDER, Ended, assert_refused, image_step, step
from tests.lab.site import OPENS, PROBE

# All that NVIDIA's runtime heeds of an image, and what turns a GPU off (1.20
# internal/config/image, internal/modifier).
GREEDY = [
    "NVIDIA_VISIBLE_DEVICES=all",
    "CUDA_VERSION=12.4",
    "NVIDIA_REQUIRE_CUDA=cuda>=1.0",
    "NVIDIA_DRIVER_CAPABILITIES=all",
    "NVIDIA_IMEX_CHANNELS=0",
    "NVIDIA_MOFED=enabled",
    "NVIDIA_GDS=enabled",
    "NVIDIA_GDRCOPY=enabled",
    "NVIDIA_NVSWITCH=enabled",
    "DOCKER_RESOURCE_GPU=all",
    "NVIDIA_CONFIG_MODE=legacy",
    "CUDA_VISIBLE_DEVICES=0,1",
    "GPU_COUNT=2",
]
BLIND = [
    "NVIDIA_VISIBLE_DEVICES=void",
    "CUDA_VISIBLE_DEVICES=-1",
    "CUDA_VISIBLE_DEVICES=",
    "NVIDIA_DISABLE_REQUIRE=1",
    "GPU_COUNT=0",
    "LD_PRELOAD=/nowhere.so",
]


# What an image sets, by its user, which may ask too.
IMAGES = {"": GREEDY, "nvidia.com/gpu=all": GREEDY, "root": BLIND, "ci": GREEDY + BLIND}


def test_images_that_ask_for_other_gpus_than_their_tasks(attacker):
    """Images set every variable that asks for GPUs, or hides them, and a user that asks too.

    Their tasks must get just what the tasks ask for: none, or one.
    """
    list_nodes = "ls /dev/nvidia* 2>/dev/null | sed 's/^/without: /'"
    jobs = {
        user: [
            image_step("image", env=["PATH=/bin", *env], user=user),
            step("none", list_nodes, "0", image="image"),
            step("one", PROBE, "1", image="image"),
        ]
        for user, env in IMAGES.items()
    }
    for user, done in attacker.at_once(jobs).items():
        assert "without: " not in done.output.replace("/without: ", ""), done.output
        if done.ran == 3:
            assert len(done.cards) == 1, done.output
            assert "\nCUDA_VISIBLE_DEVICES" not in done.output
        else:
            # There is no user of that name in the image.
            assert user == "nvidia.com/gpu=all", done.output


PARAMS = (
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_VISIBLE_DEVICES=0,1",
    "NVIDIA_VISIBLE_DEVICES=void",
    "NVIDIA_VISIBLE_DEVICES=none",
    "CUDA_VISIBLE_DEVICES=0,1",
    "CUDA_VISIBLE_DEVICES=-1",
    "ATC_EXTERNAL_URL=http://second",
    "NVIDIA_CTK_CONFIG_FILE_PATH=/evidence/config.toml",
    "XDG_CONFIG_HOME=/evidence",
    "LD_PRELOAD=/evidence/x.so",
    "PYTHONPATH=/evidence",
)


def test_params_that_ask_for_other_gpus_than_gpu_count(attacker):
    """Tasks with GPU_COUNT=1 set a param that names other GPUs, none, or other configuration.

    Each must get one, or be refused in words: never more, never a silent run without.
    """
    pairs = {entry: dict([entry.split("=", 1)]) for entry in PARAMS}
    jobs = {entry: [step("one-off", PROBE, "1", params=pair)] for entry, pair in pairs.items()}
    for entry, done in attacker.at_once(jobs).items():
        assert_as_many(done, 1, entry)


COUNTS = (
    *("01", "+1", " 1", "1 ", "1.0", "1e0", "0x1", "-1", "ALL", "1,2", "٣", "1\n2", "9" * 4300),
    *("none", "true", "\x1b[31m1", "1_0", "²"),
)


def test_odd_forms_of_a_count(attacker):
    """Tasks write GPU_COUNT in odd ways.

    Each must get as many as a person reads there, or be refused in words that are plain text.
    """
    ended = attacker.at_once({count: [step("one-off", PROBE, count)] for count in COUNTS})
    for count, done in ended.items():
        assert_as_many(done, int(count) if done.ran else 0, count)


DEVICE_MOUNTS = (
    "/var/run/nvidia-container-devices/all",
    "/run/nvidia-container-devices/all",
    "//var/run/./nvidia-container-devices/all",
    "/var/run/nvidia-container-devices/cdi/runtime.nvidia.com/gpu/all",
)


def test_mounts_that_ask_for_devices(attacker):
    """Tasks mount an output where the runtime takes a mount for a request for all GPUs.

    Each must get just what it asks for with GPU_COUNT.
    """
    for (path, gpus), done in attacker.at_once(mounting(DEVICE_MOUNTS, "01")).items():
        assert_as_many(done, int(gpus), path)


HIDING = (
    *(f"{WORK_FOLDER}{end}" for end in ("/", "//", "/.", "/./", "/../x/..", "/x/..")),
    WORK_FOLDER.replace("/build", "//build"),
    WORK_FOLDER.replace("/build", "/./build"),
    f"/{WORK_FOLDER}",
    *("/tmp/build", "/tmp", "/dev", "/dev/nvidia0", "/proc", "/sys/fs/cgroup"),
)


def test_mounts_that_hide_what_a_task_is_known_by(attacker):
    """Tasks mount an output over their own work folder, named in an odd way, or their devices.

    Each must have its GPU, or fail: never run without one.
    """
    for (path, _), done in attacker.at_once(mounting(HIDING, "1")).items():
        if done.ran:
            opened = [line for line in done.lines if line.endswith(OPENS)]
            assert len(opened) == 1, (path, done.output)
        else:
            assert done.status == 2, (path, done.output)


FOLDERS = (
    "/tmp/build/get",
    "/tmp/build/put/x",
    "/tmp/build/run",
    "/tmp/build//put",
    "/tmp/build/get/.",
)


def test_a_task_with_the_folder_of_another_kind_of_step(attacker):
    """Tasks mount an output where a get, a put or a run step has its folder.

    Nothing that Concourse makes by itself has both: they must be refused in words.
    """
    for done in attacker.at_once(mounting(FOLDERS, "01")).values():
        assert_refused(done)


def mounting(paths: tuple[str, ...], counts: str) -> dict[tuple[str, str], list[dict]]:
    """A task for each of these paths and each digit of `counts`, with an output there."""
    return {
        (path, gpus): [step("one-off", PROBE, gpus, outputs=[{"name": "o", "path": path}])]
        for path in paths
        for gpus in counts
    }


def assert_as_many(done: Ended, count: int, what: str) -> None:
    """The task saw so many GPUs, or was refused in words."""
    if done.ran:
        assert len(done.cards) == count, (what, done.output)
    else:
        assert_refused(done)


def test_a_put_that_looks_like_a_task(attacker):
    """An output is mapped to ../deadbeef, which a put mounts at /tmp/build/deadbeef.

    The put must be refused in words, and get no GPU.
    """
    task = step("t", "true", outputs=[{"name": "o"}], output_mapping={"o": "../deadbeef"})
    done = attacker.run(task, {"put": "thing", "tags": ["gpu"], "inputs": "all"})
    assert "saw /dev/nvidia" not in done.output
    assert done.status != 0, done.output


def test_ten_thousand_variables(attacker):
    """A task has 10,000 params, and another 800 kB of them.

    It must get its GPU or be refused, within seconds either way.
    """
    many = {f"P{number}": "x" for number in range(10_000)}
    for params in (many, {f"P{number}": "x" * 100_000 for number in range(8)}):
        done = attacker.one(
            "nvidia=$(ls /dev/nvidia[0-9]); echo cards $nvidia", "1", params=params
        )
        if done.ran:
            assert any(re.fullmatch("cards /dev/nvidia[01]", line) for line in done.lines)
        else:
            assert done.status == 2, done.output[-500:]
