# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test's containers are, and how it judges what is seen in them."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_runtime import container_spec as spec
from gpu_selftest.check import Level, Outcome
from gpu_selftest.isolation import container_view as views
from gpu_selftest.isolation import containers, probe, rootfs
from gpu_selftest.isolation import escape_attempts as doors
from gpu_selftest.isolation import level as isolation
from gpu_selftest.isolation import task_bundle as bundle
from gpu_selftest.isolation.container_view import Node
from gpu_selftest.isolation.inspector import Inspector
from gpu_selftest.isolation.rootfs import Mount
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import StarvedError
from machine import process
from tests.unit.grants import TASKS
from tests.unit.situations import ROOT

GOLDEN = json.loads((Path(__file__).parent / "golden" / "task.json").read_text())
UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in (0, 1)]
GPUS = tuple(
    Gpu(index, uuid, "nvidia", "NVIDIA L4", 23034, f"0000:0{index}:00.0", index)
    for index, uuid in enumerate(UUIDS)
)
NODES = (
    Node("/dev/nvidia0", (195, 0), UUIDS[0]),
    Node("/dev/nvidia1", (195, 1), UUIDS[1]),
    Node("/dev/nvidia2", (195, 2), ""),
    Node("/dev/dri/card0", (226, 0), UUIDS[0]),
    Node("/dev/dri/card1", (226, 1), UUIDS[1]),
)
# What it is answered that tries to make their nodes.
REFUSED = {node.number: errno.EPERM for node in NODES}
# What a container with GPU 0 has by NVIDIA's runtime.
WELL = {
    "/dev/null": (1, 3, 0),
    "/dev/nvidia0": (195, 0, 0),
    "/dev/nvidiactl": (195, 255, 0),
    "/dev/nvidia-uvm": (510, 0, 0),
    "/dev/nvidia-caps/nvidia-cap30": (509, 30, 0),
    "/dev/dri/card0": (226, 0, 0),
}
TOLD = [
    f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]}",
    "GPU_COUNT=1",
    f'GPU_CI_DEVICES=[{{"index":0,"uuid":"{UUIDS[0]}","model":"L4"}}]',
]


def config(folder=bundle.TASK, **annotations):
    mounts = [Mount("/work", f"{TASKS.parent}{folder}", ("bind", "rw"))]
    init = bundle.process(["/init"], bundle.variables(["A=1"], ["B=2"]))
    return bundle.config("name", "/rootfs", init, mounts, annotations, 4294967294)


def test_containers_have_the_shape_of_concourses():
    made = config()
    assert made.keys() == GOLDEN.keys()
    same = ("ociVersion", "hooks", "annotations")
    assert {key: made[key] for key in same} == {key: GOLDEN[key] for key in same}
    assert made["process"]["capabilities"] == GOLDEN["process"]["capabilities"]
    assert made["process"]["user"] == GOLDEN["process"]["user"]
    for key in ("uidMappings", "gidMappings", "namespaces", "resources"):
        assert made["linux"][key] == GOLDEN["linux"][key], key
    system = GOLDEN["mounts"][:7]
    assert [sorted(mount["options"]) for mount in made["mounts"][:7]] == [
        sorted(mount["options"]) for mount in system
    ]
    assert [mount["destination"] for mount in made["mounts"][:7]] == [
        mount["destination"] for mount in system
    ]


@pytest.mark.parametrize(
    ("folder", "answer"), [(bundle.TASK, spec.TASK), ("get", spec.OTHER), ("put", spec.OTHER)]
)
def test_the_wrapper_takes_them_for_what_they_are(folder, answer):
    assert spec.kind(config(folder), TASKS) == answer


def test_the_wrapper_can_tell_the_image_from_the_author():
    variables = spec.variables(config()["process"])
    writers = {entry: author for _, entry, author in variables.entries}
    assert (writers["A=1"], writers["B=2"]) == (False, True)


def test_no_process_of_theirs_may_do_what_concourse_forbids():
    (rule,) = config()["linux"]["seccomp"]["syscalls"]
    assert rule["action"] == "SCMP_ACT_ERRNO"
    assert {"mbind", "bpf", "perf_event_open"} <= set(rule["names"])


def test_the_interpreter_is_whole():
    mounts = {mount.destination: mount for mount in rootfs.interpreter(modules=["ctypes", "json"])}
    assert "/usr/bin/python3" in mounts
    assert os.path.dirname(json.__file__).removesuffix("/json") in mounts
    for stem in ("libc", "libffi"):
        assert any(re.search(rf"/{stem}\.so\.\d$", name) for name in mounts), stem
    loader = re.search(
        rb"(/lib[^\0]*/ld[^\0]*\.so[^\0]*)\0", Path("/usr/bin/python3").read_bytes()
    )
    assert loader[1].decode() in mounts
    assert all("ro" in mount.options for mount in mounts.values())
    assert all(os.path.exists(mount.source) for mount in mounts.values())


def test_the_probe_says_what_opening_each_device_answers(tmp_path):
    (tmp_path / "plain").write_text("no device")
    (tmp_path / "link").symlink_to("/dev/null")
    assert probe.look(str(tmp_path)) == []
    seen = {path: (major, minor, error) for path, major, minor, error in probe.look("/dev")}
    assert seen["/dev/null"] == (1, 3, 0)


def nvml_in(folder):
    """What the probe says of NVML in a process that has this folder of libraries."""
    script = "import json; from gpu_selftest.isolation import probe; "
    script += "print(json.dumps(probe.ask_nvml()))"
    environment = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/lib", "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_a_library_that_can_not_be_loaded_is_not_absent(tmp_path):
    """A task that has it can't use its GPU; one without it was given none."""
    assert nvml_in(tmp_path / "nowhere") is None
    (tmp_path / "libnvidia-ml.so.1").write_text("cut off")
    assert "libnvidia-ml.so.1: file too short" in nvml_in(tmp_path)["error"]
    (tmp_path / "libnvidia-ml.so.1").unlink()
    (tmp_path / "libnvidia-ml.so.1").mkdir()
    assert "cannot read file data" in nvml_in(tmp_path)["error"]


def view(nodes=None, planted=None, nvml=None, environment=(), made=None):
    def listed(devices):
        return [[path, *numbers] for path, numbers in devices.items()]

    said = {
        "nodes": listed(WELL if nodes is None else nodes),
        "planted": listed(planted or {}),
        "made": [
            [*number, error] for number, error in (REFUSED if made is None else made).items()
        ],
        "nvml": nvml,
        "environment": [*environment],
    }
    return views.parse(json.dumps(said))


def faults(**named):
    return views.faults_with(view(**named), NODES, GPUS[0], UUIDS[0])


def test_a_lease_is_kept_where_its_gpu_alone_is_there():
    assert faults() == []
    assert faults(nvml={"error": "", "uuids": [UUIDS[0]]}) == []
    simulated = {path: (major, minor, errno.ENXIO) for path, (major, minor, _) in WELL.items()}
    assert faults(nodes=simulated, nvml={"error": "no driver", "uuids": []}) == []


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"/dev/nvidia0": (195, 0, errno.EPERM)}, "it cannot open its own /dev/nvidia0"),
        ({"/dev/nvidia0": (195, 0, errno.EIO)}, "it cannot open its own /dev/nvidia0"),
        ({"/dev/nvidia1": (195, 1, 0)}, "it has /dev/nvidia1 of other GPUs"),
        # That it can't open it now is no reason: it should not be there.
        ({"/dev/nvidia1": (195, 1, errno.EPERM)}, "it has /dev/nvidia1 of other GPUs"),
        ({"/dev/nvidia2": (195, 2, 0)}, "it has /dev/nvidia2 of other GPUs"),
        ({"/dev/dri/card1": (226, 1, 0)}, "it has /dev/dri/card1 of other GPUs"),
        ({"/dev/dri/renderD200": (226, 200, 0)}, "it has /dev/dri/renderD200 of other GPUs"),
        # Another GPU's device under this one's name.
        ({"/dev/nvidia0": (195, 1, 0)}, "it has /dev/nvidia0 of other GPUs"),
    ],
)
def test_a_lease_is_not_kept_where_nodes_differ(more, word):
    assert [fault[: len(word)] for fault in faults(nodes={**WELL, **more})] == [word]


def test_a_lease_is_not_kept_without_its_node():
    nodes = {path: numbers for path, numbers in WELL.items() if path != "/dev/nvidia0"}
    assert faults(nodes=nodes) == [
        "it cannot open its own /dev/nvidia0 (No such file or directory)"
    ]


@pytest.mark.parametrize(
    ("uuids", "error"), [(UUIDS, ""), (UUIDS[1:], ""), ([], ""), ([], "Unknown Error")]
)
def test_a_lease_is_not_kept_where_nvml_says_otherwise(uuids, error):
    (fault,) = faults(nvml={"error": error, "uuids": uuids})
    assert fault.startswith("NVML ")


def test_a_mig_device_is_listed_with_its_gpu():
    mig = "MIG-0000000a-1111-2222-3333-444444444444"
    seen = view(nvml={"error": "", "uuids": [UUIDS[0], mig]})
    assert views.faults_with(seen, NODES, GPUS[0], mig) == []
    assert views.faults_with(seen, NODES, GPUS[0], mig.replace("a", "b"))


@pytest.mark.parametrize(
    ("caps", "shared"),
    [
        ([(1, 10), (2, 20)], False),
        ([(1, 10), (1, 11)], False),
        ([(1, 10), (1, 10)], True),
        ([(1, 10), (1, 10, 2, 20)], True),
        ([(), ()], False),
    ],
)
def test_mig_devices_have_access_of_their_own(caps, shared):
    seen = [
        view(nodes={f"/dev/nvidia-caps/nvidia-cap{n}": (509, n, 0) for n in each}) for each in caps
    ]
    assert views.share_mig_nodes(seen) is shared


@pytest.mark.parametrize(
    ("named", "lacking"),
    [
        ({"nodes": {**WELL, "/dev/nvidia0": (195, 0, errno.ENFILE)}}, os.strerror(errno.ENFILE)),
        ({"planted": {"/.gpu-ci/1": (195, 1, errno.ENOMEM)}}, os.strerror(errno.ENOMEM)),
        ({"nvml": {"error": "libx: cannot open: Too many open files", "uuids": []}}, "libx: "),
    ],
)
def test_a_look_without_room_on_the_machine_shows_nothing(named, lacking):
    """Neither a lease that is broken nor a device that did not open."""
    (told,) = views.lacks(view(**named))
    assert told.startswith(lacking)
    said = {"nodes": [], "planted": [], "made": [], "nvml": None, "environment": []}
    for kind in ("nodes", "planted"):
        said[kind] = [[path, *numbers] for path, numbers in named.get(kind, {}).items()]
    said["nvml"] = named.get("nvml")
    inspector = Inspector(
        Settings("worker/0", gpus=GPUS), containers.Containers("/usr/bin/runc", TASKS)
    )
    with pytest.raises(StarvedError, match=re.escape(lacking)):
        inspector.look(Answering(json.dumps(said)))


class Answering(containers.Container):
    """A container in which every program says this."""

    def __init__(self, said):
        super().__init__("gpu-selftest-x", "/usr/bin/runc", "/work", [])
        self.said = said

    def exec(self, *_, **__):
        return process.Completed(0, self.said, "")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EIO, errno.ENXIO, errno.ENODEV])
def test_what_a_device_or_its_rules_answer_is_no_want_of_the_machine(number):
    assert views.lacks(view(nodes={"/dev/nvidia0": (195, 0, number)})) == []


def test_without_a_lease_nothing_of_a_driver_is_there():
    assert views.faults_without(view(nodes={"/dev/null": (1, 3, 0)})) == []
    for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/nvidia-caps/x"):
        assert views.faults_without(view(nodes={path: (9, 9, errno.EPERM)})) == [f"it has {path}"]
    seen = view(nodes={}, nvml={"error": "", "uuids": UUIDS})
    assert views.faults_without(seen)


def test_a_node_that_was_not_given_must_not_open():
    planted = {"/.gpu-ci/0": (195, 0, 0), "/.gpu-ci/1": (195, 1, errno.EPERM)}
    assert views.leaks(view(planted=planted), NODES) == []
    planted["/.gpu-ci/1"] = (195, 1, errno.ENXIO)
    assert views.leaks(view(planted=planted), NODES) == ["/dev/nvidia1"]
    planted["/.gpu-ci/1"] = (195, 1, 0)
    assert views.leaks(view(planted=planted), NODES) == ["/dev/nvidia1"]


@pytest.mark.parametrize(
    ("named", "ways"),
    [
        ({}, []),
        ({"nodes": {"/dev/null": (1, 3, 0)}}, []),
        # Though device rules, where there are any, would keep it from opening them.
        ({"made": {**REFUSED, (195, 1): 0}}, ["/dev/nvidia1 (mknod: made)"]),
        ({"made": {**REFUSED, (195, 1): errno.EIO}},
         ["/dev/nvidia1 (mknod: Input/output error)"]),
        ({"made": {n: e for n, e in REFUSED.items() if n != (195, 2)}},
         ["/dev/nvidia2 (mknod: not tried)"]),
        ({"nodes": {**WELL, "/dev/x": (195, 1, errno.EPERM)}},
         ["/dev/nvidia0 (a node)", "/dev/dri/card0 (a node)", "/dev/x (a node)"]),
        ({"nodes": {"/dev/x": (195, 2, errno.EPERM)}}, ["/dev/x (a node)"]),
    ],
)  # fmt: skip
def test_without_device_rules_a_container_has_one_gpus_nodes_and_makes_none(named, ways):
    assert views.ways_past(view(**named), NODES) == ways


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({0: "NVIDIA_VISIBLE_DEVICES=all"}, "NVIDIA_VISIBLE_DEVICES"),
        ({0: "A=1"}, "NVIDIA_VISIBLE_DEVICES"),
        ({1: "GPU_COUNT=2"}, "GPU_COUNT"),
        ({2: "GPU_CI_DEVICES=[]"}, "GPU_CI_DEVICES"),
        ({2: "GPU_CI_DEVICES={"}, "GPU_CI_DEVICES"),
        ({3: "GPU_COUNT=1"}, "GPU_COUNT"),
        ({3: "CUDA_VISIBLE_DEVICES=-1"}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_variables_that_say_something_else_are_found(change, name):
    entries = [*TOLD, "HOME=/"]
    assert views.untruths(view(environment=entries), GPUS[0], UUIDS[0]) == []
    for place, entry in change.items():
        entries[place] = entry
    (fault,) = views.untruths(view(environment=entries), GPUS[0], UUIDS[0])
    assert fault.startswith(name)


def test_every_check_is_told_once_with_a_remedy():
    ids = [check.id for check in isolation.CHECKS]
    assert len({*ids}) == len(ids) == 11
    for check in isolation.CHECKS:
        assert check.level is Level.ISOLATION
        assert check.remedy
        assert check.proves
    assert [check.id for check in isolation.CHECKS if check.each_gpu] == ["lease"]


def test_without_a_wrapper_all_is_prevented_and_the_missing_named(monkeypatch, tmp_path):
    monkeypatch.setattr(wrapper, "FRONT", tmp_path / "runc")
    monkeypatch.setattr(wrapper, "POLICY", tmp_path / "policy.json")
    found = isolation.run(Settings("worker/0", gpus=GPUS), GPUS, print)
    assert {result.outcome for result in found} == {Outcome.NOT_RUN}
    assert {result.text for result in found} == {f"{tmp_path}/runc is missing"}
    assert [result.gpu for result in found if result.check == "lease"] == UUIDS
    assert len(found) == len(isolation.CHECKS) + 1


@pytest.mark.parametrize(
    ("uid_map", "nested", "highest"),
    [
        ("         0          0 4294967295\n", False, 4294967294),
        ("         0    1000000 1000000000\n", True, 999999999),
        ("         0    1000000       1000\n      1000       1000          1\n", True, 1000),
    ],
)
def test_a_container_without_all_users_is_known(tmp_path, uid_map, nested, highest):
    users = tmp_path / "uid_map"
    users.write_text(uid_map)
    assert containers.is_nested(users) is nested
    assert containers._highest_id(users) == highest


def test_doors_are_tried_with_one_gpu():
    """A container that asks for none by its author's GPU_COUNT would try nothing."""
    for door in doors.DOORS:
        step = door.step
        made = bundle.process([], bundle.variables(step.image_env, step.params))
        if not door.refusable:
            assert spec.variables(made).asked() == "1"
