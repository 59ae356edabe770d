# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's containers, made through ``ctr``, and all that a restart of the worker survives.

A step has a folder ``steps/<handle>`` in the work directory: its log, its volumes, and at its end
``result.json``. The shim writes a task's output to the log itself and keeps its exit status, so
neither needs the worker or containerd while the task runs.
"""

import asyncio
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from . import oci
from .common import StandinError, background, log

NAMESPACE = "concourse"
BUNDLES = Path("/run/containerd/io.containerd.runtime.v2.task", NAMESPACE)
TAR_SECONDS = 300
POLL_SECONDS = 0.1
CHUNK_BYTES = 16 * 1024

Step = dict[str, Any]


class Network(NamedTuple):
    """What containers are told of the network."""

    dns_servers: list[str]
    proxies: list[str]  # as NAME=value
    certificates: str  # a folder in place of /etc/ssl/certs, but in tasks


class Containers:
    """The containers of one worker."""

    def __init__(
        self,
        bin_dir: Path,
        work_dir: Path,
        resource_types: Path,
        network: Network,
        request_seconds: float,
    ) -> None:
        self._bin = bin_dir
        self._work = work_dir
        self._types = resource_types
        self._network = network
        self._request_seconds = request_seconds
        self._stopped: set[str] = set()
        self._running: set[str] = set()

    async def ctr(
        self, *args: str, stdin: bytes = b"", stderr: Path | None = None
    ) -> tuple[int, bytes, str]:
        """Run ``ctr``; its exit status, output and errors (or these appended to ``stderr``)."""
        argv = (str(self._bin / "ctr"), "--namespace", NAMESPACE, *args)
        pipe = asyncio.subprocess.PIPE
        with stderr.open("ab") if stderr else nullcontext(pipe) as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=errors
            )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), self._request_seconds)
        except asyncio.TimeoutError as error:
            process.kill()
            raise StandinError("timeout exceeded") from error
        return process.returncode or 0, out, (err or b"").decode(errors="replace").strip()

    def start(self, step: Step, build: int) -> None:
        """Start the step, or go on with it; nothing if it runs or is done."""
        handle = step["handle"]
        if handle not in self._running and not (self._folder(handle) / "result.json").exists():
            self._running.add(handle)
            background(self._run(step, build))

    async def follow(self, handle: str, offset: int) -> AsyncIterator[bytes]:
        """The step's output from ``offset`` on, until the step is done."""
        path = self._folder(handle) / "log"
        while True:
            done = handle not in self._running
            chunk = b""
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    chunk = file.read(CHUNK_BYTES)
            if chunk:
                offset += len(chunk)
                yield chunk
            elif done:
                return
            else:
                await asyncio.sleep(POLL_SECONDS)

    def result(self, handle: str) -> dict[str, Any]:
        """What became of a step that is done."""
        return json.loads((self._folder(handle) / "result.json").read_text())

    async def stop(self, handle: str) -> None:
        """Kill everything in the container; where it is still being made, nothing will run."""
        self._stopped.add(handle)
        await self.ctr("tasks", "kill", "--all", "--signal", "SIGKILL", handle)

    async def hijack(self, step: Step, args: list[str]) -> dict[str, Any]:
        """Run one more process in the step's container, without a terminal."""
        folder, handle = self._folder(step["handle"]), step["handle"]
        exec_id = str(uuid.uuid4())
        code, out, errors = await self.ctr(*self._exec(step, folder, exec_id), handle, *args)
        if errors.startswith("ctr: "):
            return {"error": str(_refused_process(handle, errors))}
        return {"exit": code, "output": out.decode(errors="replace") + errors}

    async def destroy(self, handle: str) -> None:
        """Take the container and its folder away."""
        await self.ctr("tasks", "ps", handle)
        await self.stop(handle)
        await self.ctr("tasks", "delete", "--force", handle)
        await self.ctr("containers", "delete", handle)
        shutil.rmtree(self._folder(handle), ignore_errors=True)
        self._forget_volumes(handle)

    async def destroy_build(self, build: int, handles: list[str]) -> None:
        """Take a build's containers and volumes away."""
        for handle in handles:
            await self.destroy(handle)
        self._forget_volumes(str(build))

    def _folder(self, handle: str) -> Path:
        return self._work / "steps" / handle

    def _volume(self, owner: str | int, name: str) -> Path:
        """Where a volume of a container or a build lies, in the shape that baggageclaim has."""
        return self._work / "volumes/live" / f"{owner}.{quote(name, safe='')}" / "volume"

    def _forget_volumes(self, owner: str) -> None:
        for folder in (self._work / "volumes/live").glob(f"{owner}.*"):
            shutil.rmtree(folder, ignore_errors=True)

    async def _run(self, step: Step, build: int) -> None:
        folder, state = self._folder(step["handle"]), None
        try:
            if folder.exists() and step["request"] is None:
                state = await self._ask(step["handle"])
            if state is None:  # new, or cut off before its process ran
                if folder.exists():
                    await self.destroy(step["handle"])
                await self._create(step, build, folder)
            if step["request"] is not None:
                result = await self._answer(step, folder)
            else:
                result = await self._process(step, folder, state)
        except (StandinError, OSError, ValueError, subprocess.SubprocessError) as error:
            result = {"error": str(error)}
        (folder / "result.new").write_text(json.dumps(result))
        (folder / "result.new").replace(folder / "result.json")
        self._running.discard(step["handle"])

    async def _create(self, step: Step, build: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        rootfs, image_env, image_user = self._image(step, build, folder)
        user = step["user"] or image_user
        owner = 0 if step["privileged"] else oci.highest_id()
        binds = self._binds(step, build, folder, owner)
        env = oci.environment(image_env, [*step["env"], *self._network.proxies], user)
        spec = oci.oci_spec(step["handle"], rootfs, env, image_user, step["privileged"], binds)
        spec["linux"]["resources"] |= oci.limits(step.get("limits") or {})
        (folder / "config.json").write_text(json.dumps(spec))
        (folder / "user").write_text(user)
        log("container.create", handle=step["handle"], kind=step["kind"], step=step["name"])
        handle, config = step["handle"], str(folder / "config.json")
        if why := await self._begin(handle, config):
            await self.ctr("containers", "delete", handle)
            raise StandinError(
                f"find or create container on worker {step['worker']}: "
                f"starting task: new task: {why}"
            )

    async def _begin(self, handle: str, config: str) -> str:
        """Make a container with its first process; why that failed, or nothing."""
        why = ""
        # Of one that was being made when the worker ended, containerd may learn late.
        for pause in (0, 1, 4):
            if pause:
                await self.ctr("tasks", "delete", "--force", handle)
                await self.ctr("containers", "delete", handle)
                await asyncio.sleep(pause)
            code, _, errors = await self.ctr("containers", "create", "--config", config, handle)
            if code == 0:
                code, _, errors = await self.ctr("tasks", "start", "--detach", "--null-io", handle)
            why = errors.removeprefix("ctr: ") if code else ""
            if "already exists" not in why:
                break
        return why

    def _image(self, step: Step, build: int, folder: Path) -> tuple[Path, list[str], str]:
        """The step's root file system, and its image's environment and user."""
        image = step["image"]
        owner = 0 if step["privileged"] else oci.highest_id()
        if "rootfs_uri" in image:
            scheme, _, path = image["rootfs_uri"].partition("://")
            if scheme != "raw" or not path.startswith("/"):
                raise StandinError(f"unsupported rootfs_uri {image['rootfs_uri']}: not raw:///...")
            return Path(path), [], ""
        rootfs = self._volume(step["handle"], "image")
        if "artifact" in image:
            volume = self._volume(build, image["artifact"])
            if not (volume / "rootfs").is_dir():
                raise StandinError(f"missing image: {image['artifact']} holds no rootfs/")
            metadata = json.loads((volume / "metadata.json").read_text())
            _copy(volume / "rootfs", rootfs)
            _give(rootfs, {0, oci.highest_id()}, owner)
            return rootfs, metadata.get("env") or [], metadata.get("user") or ""
        archive = self._types / image["type"] / "rootfs.tgz"
        if not archive.exists():
            raise StandinError(f"unknown resource type {image['type']}")
        rootfs.mkdir(parents=True)
        subprocess.run(
            ["/bin/tar", "-xzpf", str(archive), "-C", str(rootfs)], check=True, timeout=TAR_SECONDS
        )
        _give(rootfs, {0}, owner)
        return rootfs, [], ""

    def _binds(self, step: Step, build: int, folder: Path, owner: int) -> list[tuple[str, Path]]:
        """Concourse's bind mounts in its order: init, scratch, the work dir, volumes, network."""
        handle = step["handle"]
        binds = [(oci.INIT, self._bin / "init"), ("/scratch", self._volume(handle, "scratch"))]
        if step["workdir"]:
            binds.append((step["workdir"], self._volume(handle, "workdir")))
        for number, volume in enumerate(step["volumes"]):
            path = self._volume(build, volume["artifact"])
            if not volume["output"]:
                if not path.exists():
                    raise StandinError(
                        f"missing inputs: {volume['artifact']} (the stand-in does not move "
                        "volumes between workers)"
                    )
                path = _copy(path, self._volume(handle, f"input-{number}"))
            # A volume takes the place of another at the very same path, as in Concourse.
            binds = [bind for bind in binds if bind[0] != volume["path"]]
            binds.append((volume["path"], path))
        for _, path in binds[1:]:
            if not path.exists():
                path.mkdir(parents=True)
                os.chown(path, owner, owner)
        network = folder / "network"
        network.mkdir()
        files = {
            "hosts": f"127.0.0.1 localhost {handle}\n",
            "hostname": f"{handle}\n",
            "resolv.conf": "".join(f"nameserver {x}\n" for x in self._network.dns_servers),
        }
        for name, text in files.items():
            (network / name).write_text(text)
            binds.append((f"/etc/{name}", network / name))
        if self._network.certificates and step["request"] is not None:
            binds.append(("/etc/ssl/certs", Path(self._network.certificates)))
        return binds

    def _exec(self, step: Step, folder: Path, exec_id: str) -> tuple[str, ...]:
        user = (folder / "user").read_text()
        who = ("--user", user) if user else ()
        return ("tasks", "exec", "--exec-id", exec_id, "--cwd", step["cwd"], *who)

    async def _answer(self, step: Step, folder: Path) -> dict[str, Any]:
        """Run a resource's script: JSON in and out, its errors are the log."""
        code, out, _ = await self.ctr(
            *self._exec(step, folder, "resource"),
            *(step["handle"], *step["args"]),
            stdin=json.dumps(step["request"]).encode(),
            stderr=folder / "log",
        )
        return {"exit": code, "stdout": out.decode(errors="replace")}

    async def _process(self, step: Step, folder: Path, state: int | str | None) -> dict[str, Any]:
        """Run a task's process, or go on with the one of this ``state``; its exit status."""
        handle = step["handle"]
        if state is None:
            if handle in self._stopped:
                raise StandinError("interrupted")
            (folder / "log").touch()
            code, _, errors = await self.ctr(
                *self._exec(step, folder, "task"),
                *("--detach", "--log-uri", f"file://{folder}/log", handle, *step["args"]),
            )
            if code != 0:
                raise _refused_process(handle, errors)
            state = "running"
        while state == "running":
            while _lives(BUNDLES / handle / "task.pid"):
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(POLL_SECONDS)  # containerd learns of the end a little later
            state = await self._ask(handle)
        if state is None:
            raise StandinError(f"no running task found: {handle}")
        return {"exit": state}

    async def _ask(self, handle: str) -> int | str | None:
        """The exit status of the container's task process, "running", or None if there is none."""
        code, _, errors = await self.ctr("tasks", "delete", "--exec-id", "task", handle)
        if not errors.startswith("ctr: "):
            return code
        return None if "not found" in errors else "running"


def _refused_process(handle: str, errors: str) -> StandinError:
    fields = {"Type": "", "Message": f"proc start: {errors.removeprefix('ctr: ')}"}
    reply = json.dumps({**fields, "Handle": handle, "ProcessID": "", "Binary": ""})
    return StandinError(f"start process: backend error: Exit status: 500, message: {reply}")


def _lives(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def _copy(source: Path, target: Path) -> Path:
    """A copy of a folder with whatever is in it, pipes and sockets too; an input is one."""
    target.parent.mkdir(parents=True)
    command = ["/bin/cp", "-a", str(source), str(target)]
    subprocess.run(command, check=True, timeout=TAR_SECONDS, capture_output=True)
    return target


def _give(folder: Path, owners: set[int], owner: int) -> None:
    """Hand what belongs to one of ``owners`` to ``owner``, the user who is root inside."""
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid in owners:
            os.chown(path, owner, owner, follow_symlinks=False)
