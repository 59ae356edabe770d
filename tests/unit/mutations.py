# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Golden specs with damage and malice, on the level of JSON values and on the level of bytes."""

import json
import random

from gpu_runtime.environment import DOORS, NARROWING
from tests.unit.grants import golden

NAMES = [
    *("task", "task-cuda-image", "task-hostile", "task-none", "task-privileged"),
    *("task.granted", "task-hostile.amd", "get", "get-privileged", "put", "run", "check"),
]
_GOLDEN = {name: json.dumps(golden(name)) for name in NAMES}
_IDS = ["GPU-00000000-1111-2222-3333-444444444444", "MIG-00000001-5555-6666-7777-888888888888"]
_DESTINATIONS = [
    *("/tmp/build/e55deab7", "/tmp/build/get", "/tmp/build/E55DEAB7", "/tmp/build/e55deab7/"),
    *(
        "/tmp/build/0123456g",
        "/tmp/build/",
        "/var/run/nvidia-container-devices/all",
        "//tmp/build",
    ),
    *("/var/run/nvidia-container-devices/../nvidia-container-devices/imex/channel0", "/dev/null"),
    *("/tmp//build/./e55deab7/", "//tmp/x/../build/e55deab7", '/tmp/a"/../build/e55deab7/.'),
    *("//var/run/nvidia-container-devices/0", "/run/nvidia-container-devices/all/", "", "\ud800"),
]
_VALUES = ["", "0", "1", "0,1", "all", "void", "-1", "2", "9" * 5000, "\ud800", "a=b", *_IDS]
_LOADERS = {"LD_PRELOAD", "LD_AUDIT", "LD_DEBUG_OUTPUT", "GLIBC_TUNABLES", "GCONV_PATH"}
_VARIABLES = [
    *("NVIDIA_VISIBLE_DEVICES", "GPU_COUNT", "GPU_CI_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    *sorted(DOORS | _LOADERS | NARROWING),
    *("ATC_EXTERNAL_URL", "DOCKER_RESOURCE_GPU", "CUDA_VERSION", "WORK", ""),
]
_JUNK = [
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "1" + "0" * 30,
        '""',
        '"x"',
        '"/tmp/build/e55deab7"',
        "[]",
    ),
    *("{}", "[[]]", '{"a":[1]}', '["ATC_EXTERNAL_URL=u"]', '{"type":"user"}', '"\\udfff"'),
    *('{"destination":"/tmp/build/e55deab7"}', '{"path":"/dev/null","type":"c"}', "[null]"),
    *('"user"', '[{"type":"user"}]', "1e300"),
]
_BYTES = [
    *(b"\x00", b"\xff", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\n", b"\\u002f", b"1e999"),
    *(b'"/tmp/build/e55deab7"', b"NaN", b"\xef\xbb\xbf", b'"mounts":[],', b"\\/", b"-", b" "),
]


def spec(chance: random.Random) -> bytes:
    """The text of a config.json, damaged in a few places."""
    config = json.loads(_GOLDEN[chance.choice(NAMES)])
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        chance.choice([_any_value, _variables, _variables, _mount, _annotation])(chance, config)
    return _text(chance, config)


def process(chance: random.Random) -> bytes:
    """The text of a process file, damaged in a few places."""
    config = {"process": json.loads(_GOLDEN[chance.choice(NAMES)])["process"]}
    for _ in range(chance.choice([0, 1, 2, 4])):
        chance.choice([_any_value, _variables, _variables])(chance, config)
    return _text(chance, config.get("process"))


def _text(chance: random.Random, value: object) -> bytes:
    escaped = chance.random() < 0.5
    text = json.dumps(value, separators=chance.choice([",:", (", ", ": ")]), ensure_ascii=escaped)
    content = bytearray(text.encode(errors="replace"))
    if chance.random() < 0.3:
        for _ in range(chance.choice([1, 1, 2, 5])):
            _byte(chance, content)
    return bytes(content)


def _byte(chance: random.Random, content: bytearray) -> None:
    place = chance.randrange(len(content) + 1)
    work = content.find(b"/tmp/build/")
    if work >= 0 and chance.random() < 0.3:
        place = min(len(content), max(0, work + chance.randrange(-2, 22)))
    kind = chance.randrange(5)
    if kind == 0:
        content[place : place + 1] = bytes([chance.randrange(256)])
    elif kind == 1:
        content[place:place] = chance.choice(_BYTES)
    elif kind == 2:
        del content[place : place + chance.choice([1, 2, 20])]
    elif kind == 3:
        content[place:place] = content[place : place + chance.choice([1, 30, 200])]
    elif chance.random() < 0.2:
        del content[place:]


def _any_value(chance: random.Random, config: dict) -> None:
    """Replace, remove, double or add a value anywhere."""
    parent: object = config
    while True:
        keys = [*parent] if isinstance(parent, dict) else [*range(len(parent))]
        if not keys:
            return
        key = chance.choice(keys)
        inner = parent[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            break
        parent = inner
    junk = json.loads(chance.choice(_JUNK))
    kind = chance.randrange(4)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, inner)
    elif kind == 2 and isinstance(parent, dict):
        parent[chance.choice(["env", "mounts", "user", "destination", "devices", "x"])] = junk
    else:
        parent[key] = junk


def _variables(chance: random.Random, config: dict) -> None:
    process = config.get("process")
    entries = process.get("env") if isinstance(process, dict) else None
    if not isinstance(entries, list):
        return
    for _ in range(chance.choice([1, 2, 5])):
        name, value = chance.choice(_VARIABLES), chance.choice(_VALUES)
        if name == "ATC_EXTERNAL_URL" and chance.random() < 0.7:
            continue  # a second one ends everything
        entry = f"{name}={value}" if chance.random() < 0.9 else name
        entries.insert(chance.randrange(len(entries) + 1), entry)


def _mount(chance: random.Random, config: dict) -> None:
    mounts = config.get("mounts")
    if isinstance(mounts, list):
        mount = {"destination": chance.choice(_DESTINATIONS), "source": "/dev/null"}
        mounts.insert(chance.randrange(len(mounts) + 1), mount)


def _annotation(chance: random.Random, config: dict) -> None:
    annotations = config.get("annotations")
    if isinstance(annotations, dict):
        name = chance.choice(["cdi.k8s.io/x", "cdi.k8s.io/", "cdi.k8s.io", "x", "/tmp/build/get"])
        annotations[name] = chance.choice(["nvidia.com/gpu=all", "", 7, None])
