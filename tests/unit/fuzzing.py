# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Damaged and hostile specs for the back end, and what must hold whatever they are.

The back end runs in this process, since starting it would take a hundred times as long; the calls
that would replace the process tell what would have come next. Case `number` is always the same:
`Fuzzer.create(number)` repeats one that failed.
"""

import json
import os
import pathlib
import random
import re
import stat
import sys

import pytest

from gpu_runtime import fast_json as jsontext
from gpu_runtime import signals
from gpu_runtime import task_call as wrapper
from gpu_runtime.environment import DOORS, LOADER, NARROWING
from gpu_runtime.policy import VERSION
from tests.unit import grants, mutations
from tests.unit.wrapper_rig import GLOBAL

RUNTIME = "/usr/bin/true"  # stands for nvidia-container-runtime: it can be run, and never is
RUNC = "/nowhere/runc"
BORDER = "ATC_EXTERNAL_URL"
OWNED = {"NVIDIA_VISIBLE_DEVICES", "GPU_COUNT", "GPU_CI_DEVICES"}
TEXT_OF_A_TASK = re.compile(rb'"/tmp/build/[0-9a-f]{8}"')
WORK_FOLDER = re.compile(r"/tmp/build/[0-9a-f]{8}")
NODES = [["/dev/null", "/dev/zero"], ["/dev/null", "/dev/full"]]
OTHERS = {
    "gpus": [{**gpu, "nodes": NODES[place]} for place, gpu in enumerate(grants.AMD_GPUS)],
    "nvidia_runtime": "",
}
POLICIES = {
    "one": {},
    "two": {"gpus_per_task": 2},
    "none": {"gpus_per_task": 0},
    "shared": {"allocation": "shared"},
    "mig": {"gpus": grants.MIG_GPUS, "privileged_tasks": "gpu"},
    "privileged": {"privileged_tasks": "gpu"},
    "amd": {"vendor": "amd", "privileged_tasks": "gpu", **OTHERS},
    "amd-shared": {"vendor": "amd", "allocation": "shared", **OTHERS},
    "intel": {"vendor": "intel", **OTHERS, "gpus": [{**OTHERS["gpus"][1], "index": 0}]},
    "off": {"gpus": []},
    "broken": {"version": 0},
}
_NODE = ("path", "type", "major", "minor", "fileMode", "uid", "gid")
_RULE = ("allow", "type", "major", "minor", "access")
# Every field that may be in a config.json after and not before; all are the OCI specification's.
ADDED = {
    *(("process", "env"), ("process", "env", "[]"), ("process", "user")),
    *(("process", "user", "additionalGids"), ("process", "user", "additionalGids", "[]")),
    *(("linux",), ("linux", "devices"), ("linux", "devices", "[]"), ("linux", "resources")),
    *(("linux", "resources", "devices"), ("linux", "resources", "devices", "[]")),
    *(("linux", "devices", "[]", name) for name in _NODE),
    *(("linux", "resources", "devices", "[]", name) for name in _RULE),
}


class Next:
    """What would have come next: a runtime, or a refusal in words."""

    def __init__(self, runtime="", argv=(), environment=None, refusal=""):
        self.runtime = runtime
        self.argv = [*argv]
        self.environment = environment
        self.refusal = refusal


class _Replaced(BaseException):
    pass


class Fuzzer:
    """The back end with a folder of its own."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.store = folder / "gpu-ci" / "leases"
        self.bundle = folder / "bundle"
        self.config = self.bundle / "config.json"
        self.process = folder / "runc-process"
        self.log = self.bundle / "log.json"
        self.journal = folder / "oci.log"
        self.bundle.mkdir(parents=True)
        for name, changes in POLICIES.items():
            content = grants.content(nvidia_runtime=RUNTIME)
            self.policy(name).write_text(json.dumps({**content, **changes}))

        def replaced(runtime, argv, environment):
            raise _Replaced(Next(runtime, argv, environment))

        monkeypatch.setattr(os, "execve", replaced)
        monkeypatch.setattr(signals, "as_a_child_expects", lambda: None)
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def policy(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.policy.json"

    def call(self, policy: str, *words: str) -> Next:
        """Call the back end as the front does."""
        ours = [RUNC, str(self.policy(policy)), str(self.store), "/opt/x/bin", str(self.journal)]
        words = [*GLOBAL, "--log", str(self.log), *words]
        self.log.unlink(missing_ok=True)
        try:
            wrapper.main([*ours, *words])
        except _Replaced as found:
            came = found.args[0]
            assert came.argv == [came.runtime, *words], "runc's arguments are handed on"
            assert not self.log.exists()
            return came
        except SystemExit as end:
            if end.code != 1:
                raise
            (line,) = self.log.read_text().splitlines()
            said = json.loads(line)
            assert said["level"] == "error"
            assert said["msg"].startswith(f"gpu-ci-worker: {said['code']}: ")
            return Next(refusal=said["msg"])
        raise AssertionError("the back end came back")

    def forget(self) -> None:
        """No container has anything; this process, which stands for each call, never ends."""
        (self.store / "leases.json").unlink(missing_ok=True)
        (self.store / "containers" / "ID.json").unlink(missing_ok=True)

    def create(self, number: int) -> str:
        """A create of case `number`: asserts what must hold; what became of it, in a word."""
        chance = random.Random(number)
        policy = chance.choice([*POLICIES])
        content = mutations.spec(chance)
        mode = chance.choice([0o600, 0o640, 0o644, 0o666])
        owner = chance.choice([(0, 0), (1000, 7)]) if os.geteuid() == 0 else (-1, -1)
        self.forget()
        self.config.write_bytes(content)
        self.config.chmod(mode)
        os.chown(self.config, *owner)
        before = self.config.stat()
        came = self.call(policy, "create", "--bundle", str(self.bundle), "ID")
        assert sorted(os.listdir(self.bundle)) in (["config.json"], ["config.json", "log.json"])
        after = self.config.stat()
        kept = after.st_mode, after.st_uid, after.st_gid
        assert kept == (before.st_mode, before.st_uid, before.st_gid)
        assert stat.S_IMODE(after.st_mode) == mode
        config = parsed(content)
        try:
            jsontext.loads(content, jsontext.SPEC)
        except ValueError:
            config = None  # runc may read another one
        word = self._judge(content, config, policy, came)
        if word in ("untouched", "refused"):
            assert self.config.read_bytes() == content
            assert after.st_ino == before.st_ino
        return word

    def _judge(self, content, config, policy, came) -> str:
        if isinstance(config, dict) and not is_task(config):
            assert came.runtime == RUNC, f"no task was refused: {came.refusal}"
            assert not (self.store / "containers" / "ID.json").exists()
            return "untouched"
        if not isinstance(config, dict) and not TEXT_OF_A_TASK.search(content):
            return "untouched" if came.runtime else "refused"  # the front never asks about it
        if policy == "off":
            assert came.runtime == RUNC, came.refusal
            return "untouched"
        if came.refusal:
            given = json.loads(self.policy(policy).read_text())
            assert not is_plain(given, config) or b"e999" in content, came.refusal
            return "refused"
        assert isinstance(config, dict), "what can't be read is no silent run without a GPU"
        assert policy != "broken"
        assert not other_folders(config), "it may be a put, too"
        changed = parsed(self.config.read_bytes())
        self._check_grant(json.loads(self.policy(policy).read_text()), config, changed, came)
        return "granted" if devices_told(changed["process"]) else "denied"

    def _check_grant(self, policy, before, after, came) -> None:
        check_fields(before, after)
        check_doors(after)
        count = check_variables(policy, after["process"])
        by_runtime = count > 0 and policy["vendor"] == "nvidia"
        assert came.runtime == (RUNTIME if by_runtime else RUNC)
        path = self.store / "containers" / "ID.json"
        assert path.exists(), "an exec could not be told"
        record = json.loads(path.read_text())
        ids = [device["uuid"] for device in devices_told(after["process"])]
        assert record["gpus"] == ids
        holders = {}
        if (self.store / "leases.json").exists():
            holders = json.loads((self.store / "leases.json").read_text())["holders"]
        assert [holder["gpus"] for holder in holders.values()] == ([ids] if ids else [])
        own_root = any(
            isinstance(entry, dict) and entry.get("type") == "user"
            for entry in listed(mapped(before.get("linux")).get("namespaces"))
        )
        assert count == wanted(policy, before["process"], privileged=not own_root)
        if policy["vendor"] != "nvidia":
            check_nodes(policy, before, after, ids)

    def exec(self, number: int) -> str:
        """An exec of case `number` into a container with a grant."""
        chance = random.Random(number)
        policy = chance.choice(["one", "two", "shared", "mig", "amd", "none"])
        self.forget()
        self.config.write_text(json.dumps(grants.golden("task")))
        assert self.call(policy, "create", "--bundle", str(self.bundle), "ID").runtime
        told = json.loads((self.store / "containers" / "ID.json").read_text())["environment"]
        content = mutations.process(chance)
        self.process.write_bytes(content)
        came = self.call(policy, "exec", "--process", str(self.process), "--detach", "ID")
        if came.refusal:
            assert self.process.read_bytes() == content
            return "refused"
        assert came.runtime == RUNC
        before, after = parsed(content), parsed(self.process.read_bytes())
        check_fields({"process": before}, {"process": after})
        for name, value in told.items():
            assert [e for e in after["env"] if e.startswith(f"{name}=")] == [f"{name}={value}"]
        assert not DOORS.intersection(entry.partition("=")[0] for entry in after["env"])
        return "told"


def parsed(content: bytes) -> object:
    """The JSON value as the standard library reads it; None if it is none, or not Go's."""

    def no_constant(name):
        raise ValueError(name)

    try:
        return json.loads(content.decode(), parse_constant=no_constant)
    except ValueError:
        return None


def listed(value: object) -> list:
    return value if isinstance(value, list) else []


def mapped(value: object) -> dict:
    return value if isinstance(value, dict) else {}


def cleaned(path: object) -> str:
    """A mount's destination as the runtime reads it."""
    parts: list[str] = []
    for part in path.split("/") if isinstance(path, str) else ():
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def places(config: dict) -> list[tuple[str, object]]:
    """Destination and source of each mount."""
    mounts = map(mapped, listed(config.get("mounts")))
    return [(cleaned(mount.get("destination")), mount.get("source")) for mount in mounts]


def is_task(config: dict) -> bool:
    return any(WORK_FOLDER.fullmatch(place) for place, _ in places(config))


def other_folders(config: dict) -> list[str]:
    """Where it has mounts that other kinds of steps have."""
    found = [place for place, _ in places(config)]
    return [place for place in found if re.match("/tmp/build/(get|put|run)(/|$)", place)]


def is_usual(config: dict) -> bool:
    """Whether a task has Concourse's own root and work folder, and no other step's folder."""
    usual = grants.golden("task")
    work = [mount["source"] for mount in usual["mounts"] if "/build/" in mount["destination"]]
    found = places(config)
    works = any(WORK_FOLDER.fullmatch(place) and source in work for place, source in found)
    return config.get("root") == usual["root"] and works and not other_folders(config)


def authors(process: dict) -> list[str]:
    """The entries that the pipeline's author wrote: what comes after the first border."""
    entries = [entry for entry in listed(process.get("env")) if isinstance(entry, str)]
    borders = [place for place, entry in enumerate(entries) if entry.startswith(f"{BORDER}=")]
    return entries[borders[0] + 1 :] if borders else []


def is_plain(policy: dict, config: object) -> bool:
    """Whether a task asks for nothing of its own, so that nothing is to be refused."""
    process = mapped(mapped(config).get("process"))
    own = {"GPU_COUNT", BORDER, *NARROWING}
    enough = policy["gpus_per_task"] <= sum(len(gpu["devices"]) for gpu in policy["gpus"])
    named = {entry.partition("=")[0] for entry in authors(process)}
    followed = policy["version"] == VERSION and enough and not own & named
    return bool(process) and followed and is_usual(mapped(config))


def wanted(policy: dict, process: dict, *, privileged: bool) -> int:
    """How many devices a task gets that gets what it asks for."""
    total = sum(len(gpu["devices"]) for gpu in policy["gpus"])
    numbers = [entry for entry in authors(process) if entry.startswith("GPU_COUNT=")]
    if privileged and policy["privileged_tasks"] == "no-gpu":
        return 0
    number = numbers[-1].partition("=")[2] if numbers else str(policy["gpus_per_task"])
    count = total if number == "all" else int(number)
    return total if count and policy["allocation"] == "shared" else count


def fields(value: object, place: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """The paths of all fields; the items of a list are one."""
    found = {place} if place else set()
    inner = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        inner = (("[]", item) for item in value)
    for name, item in inner:
        found |= fields(item, (*place, name))
    return found


def is_a_gpus(node: dict) -> bool:
    return str(node.get("path")).startswith(("/dev/nvidia", "/dev/dri/", "/dev/kfd"))


def place(node: dict) -> list:
    return [node.get(name) for name in ("type", "major", "minor")]


def check_fields(before: dict, after: dict) -> None:
    """Nothing but what a grant is about has changed."""
    assert fields(after) - fields(before) <= ADDED
    assert before.keys() - after.keys() == set()
    for name in before.keys() - {"process", "linux", "mounts", "annotations"}:
        assert after[name] == before[name]
    for name in before["process"].keys() - {"env", "user"}:
        assert after["process"][name] == before["process"][name]
    linux = mapped(before.get("linux"))
    for name in linux.keys() - {"devices", "resources"}:
        assert after["linux"][name] == linux[name]
    for name in mapped(linux.get("resources")).keys() - {"devices"}:
        assert after["linux"]["resources"][name] == linux["resources"][name]
    rules = listed(mapped(linux.get("resources")).get("devices"))
    # What an earlier create has put in goes.
    nodes = [one for one in map(mapped, listed(linux.get("devices"))) if is_a_gpus(one)]
    gone = [place(one) for one in nodes]
    rules = [
        rule
        for rule in rules
        if mapped(rule).get("allow") is not True or place(mapped(rule)) not in gone
    ]
    assert listed(mapped(mapped(after.get("linux")).get("resources")).get("devices"))[
        : len(rules)
    ] == (rules)
    remaining = iter(listed(before.get("mounts")))
    assert all(mount in remaining for mount in listed(after.get("mounts")))
    assert mapped(after.get("annotations")).items() <= mapped(before.get("annotations")).items()


def check_doors(config: dict) -> None:
    names = {entry.partition("=")[0] for entry in config["process"]["env"]}
    assert not DOORS & names
    assert not [name for name in names if name.startswith(("DOCKER_RESOURCE_", *LOADER))]
    assert not [n for n in mapped(config.get("annotations")) if n.startswith("cdi.k8s.io/")]
    for mount in listed(config.get("mounts")):
        place = mapped(mount).get("destination")
        cleaned = re.sub("/+", "/", os.path.normpath(place)) if isinstance(place, str) else ""
        assert not cleaned.startswith("/var/run/nvidia-container-devices")


def check_variables(policy: dict, process: dict) -> int:
    """One entry of each of ours, and no device that the policy lacks; how many there are."""
    for name in OWNED:
        assert len([entry for entry in process["env"] if entry.startswith(f"{name}=")]) == 1
    values = dict(entry.split("=", 1) for entry in process["env"])
    told = devices_told(process)
    allowed = {name: gpu for gpu in policy["gpus"] for name in gpu["devices"]}
    assert all(allowed[device["uuid"]]["index"] == device["index"] for device in told)
    assert len({device["uuid"] for device in told}) == len(told) == int(values["GPU_COUNT"])
    visible = ",".join(device["uuid"] for device in told) or "void"
    assert values["NVIDIA_VISIBLE_DEVICES"] == (
        visible if policy["vendor"] == "nvidia" else "void"
    )
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        items = [item.strip() for item in values.get(name, "").split(",")] if told else []
        assert all(int(item) < len(told) for item in items if item.isdecimal())
    return len(told)


def check_nodes(policy: dict, before: dict, after: dict, ids: list[str]) -> None:
    """The nodes of the granted devices, and no other that was not there before."""
    wanted = {
        node for gpu in policy["gpus"] if set(gpu["devices"]) & set(ids) for node in gpu["nodes"]
    }
    after_ones = listed(mapped(after.get("linux")).get("devices"))
    before_ones = listed(mapped(before.get("linux")).get("devices"))
    assert {node["path"] for node in after_ones if node not in before_ones} <= wanted
    assert wanted <= {mapped(node).get("path") for node in after_ones}


def devices_told(process: dict) -> list[dict]:
    (text,) = [entry for entry in process["env"] if entry.startswith("GPU_CI_DEVICES=")]
    return json.loads(text.partition("=")[2])
