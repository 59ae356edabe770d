# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""From what a pipeline's author wrote to a flat list of steps (pure).

Names, arguments and mounts are Concourse 8.2.5's: atc/engine/step_factory.go (``/tmp/build/...``),
atc/worker/gardenruntime/worker.go (volumes), atc/exec (what each kind of step runs).
"""

import hashlib
import json
import posixpath
import uuid
from typing import Any

import yaml

from .common import StandinError

Step = dict[str, Any]


def read_yaml(text: str) -> dict[str, Any]:
    """The mapping that ``text`` holds."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StandinError(f"invalid YAML: {error}") from error
    if not isinstance(document, dict):
        raise StandinError("invalid configuration: it must be a mapping")
    return document


def one_off(config: dict[str, Any], tags: list[str]) -> list[Step]:
    """The plan of ``fly execute``."""
    return [_task({"task": "one-off", "config": config}, tags)]


def job_plan(pipeline: dict[str, Any], job_name: str) -> list[Step]:
    """The plan of one build of the job: a check before each get, a get after each put."""
    job = next((job for job in pipeline.get("jobs", ()) if job.get("name") == job_name), None)
    if job is None:
        raise StandinError(f"job '{job_name}' not found")
    resources = {resource["name"]: resource for resource in pipeline.get("resources", ())}
    steps: list[Step] = []
    for step in job["plan"]:
        tags = step.get("tags", [])
        if "task" in step:
            steps.append(_task(step, tags))
            continue
        kind = "get" if "get" in step else "put"
        name = step.get("resource", step[kind])
        if name not in resources:
            raise StandinError(f"{kind} '{step[kind]}': unknown resource '{name}'")
        resource = resources[name]
        if kind == "get":
            steps.append(_resource_step("check", step["get"], resource, resource.get("tags", [])))
        else:
            artifacts = [volume["artifact"] for done in steps for volume in done["volumes"]]
            put = _resource_step("put", step["put"], resource, tags)
            put["workdir"] = "/tmp/build/put"
            put["volumes"] = [
                {
                    "artifact": artifact,
                    "path": posixpath.normpath(f"/tmp/build/put/{artifact}"),
                    "output": False,
                }
                for artifact in dict.fromkeys(artifacts)
            ]
            steps.append(put)
        get = _resource_step("get", step[kind], resource, tags)
        get["volumes"] = [{"artifact": step[kind], "path": "/tmp/build/get", "output": True}]
        steps.append(get)
    return steps


def _task(step: Step, tags: list[str]) -> Step:
    name, config = step["task"], step.get("config")
    if not config or "run" not in config:
        raise StandinError(
            f"task '{name}': the stand-in needs config: with run:, it reads no file:"
        )
    if "image" in step:
        image = {"artifact": step["image"]}
    elif "rootfs_uri" in config:
        image = {"rootfs_uri": config["rootfs_uri"]}
    else:
        raise StandinError(f"task '{name}': the stand-in needs rootfs_uri or image, no registry")
    workdir = f"/tmp/build/{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    run = config["run"]
    volumes = [
        {
            "artifact": (step.get(f"{kind}_mapping") or {}).get(volume["name"], volume["name"]),
            "path": _inside(workdir, volume.get("path") or volume["name"]),
            "output": kind == "output",
        }
        for kind in ("input", "output")
        for volume in config.get(f"{kind}s") or ()
    ]
    return {
        **_step("task", name, tags),
        "attempts": step.get("attempts", 1),
        "image": image,
        # As Concourse does it: an image given as rootfs_uri loses `privileged`.
        "privileged": bool(step.get("privileged")) and "artifact" in image,
        "params": _strings({**(config.get("params") or {}), **(step.get("params") or {})}),
        "user": run.get("user", ""),
        "args": [run["path"], *map(str, run.get("args") or ())],
        "cwd": posixpath.join(workdir, run.get("dir", "")).rstrip("/"),
        "workdir": workdir,
        "volumes": volumes,
        "limits": config.get("container_limits"),
    }


def _inside(workdir: str, path: str) -> str:
    """Where a volume is mounted; atc/exec/task_step.go, resolvePath: an absolute path as it is."""
    if path.startswith("/"):
        return path
    return workdir + posixpath.normpath(f"/{path}").rstrip("/")


def _resource_step(kind: str, name: str, resource: Step, tags: list[str]) -> Step:
    script = {"check": "check", "get": "in", "put": "out"}[kind]
    folder = [] if kind == "check" else [f"/tmp/build/{kind}"]
    return {
        **_step(kind, name, tags),
        "image": {"type": resource["type"]},
        "args": [f"/opt/resource/{script}", *folder],
    }


def _step(kind: str, name: str, tags: list[str]) -> Step:
    return {
        "handle": str(uuid.uuid4()),
        "kind": kind,
        "name": name,
        "attempts": 1,
        "earlier": [],
        "tags": list(tags),
        "privileged": False,
        "params": {},
        "user": "",
        "cwd": "/",
        "workdir": None,
        "volumes": [],
    }


def _strings(params: dict[str, Any]) -> dict[str, str]:
    """Task params as the step's environment shows them: a string as it is, all else as JSON."""
    return {
        name: value if isinstance(value, str) else "" if value is None else json.dumps(value)
        for name, value in params.items()
    }
