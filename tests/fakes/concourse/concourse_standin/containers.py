# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The worker's containers, made through ``ctr``, and all that a restart of the worker survives.

A step has a folder ``steps/<handle>`` in the work directory: its log, and at its end
``result.json``. The shim writes the step's output itself and keeps its exit status, so neither
needs the worker or containerd while the step runs. None goes through ``ctr``: on a busy machine
``ctr tasks exec`` opens its pipe after the process has ended, loses all and exits with 0.
"""

import asyncio
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator
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

    async def ctr(self, *args: str) -> tuple[int, str]:
        """Run ``ctr``; its exit status and errors."""
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            self._bin / "ctr",
            "--namespace",
            NAMESPACE,
            *args,
            stdin=null,
            stdout=null,
            stderr=pipe,
        )
        try:
            _, errors = await asyncio.wait_for(process.communicate(), self._request_seconds)
        except asyncio.TimeoutError as error:
            process.kill()
            raise StandinError("timeout exceeded") from error
        return process.returncode or 0, errors.decode(errors="replace").strip()

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
        name = str(uuid.uuid4())
        output = self._folder(step["handle"]) / name
        try:
            await self._begin_process(step, name, output, args)
            code = await self._end_of(step["handle"], name, "running")
        except StandinError as error:
            return {"error": str(error)}
        return {"exit": code, "output": output.read_text(errors="replace")}

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
        handle, folder = step["handle"], self._folder(step["handle"])
        name = "task" if step["kind"] == "task" else "resource"
        try:
            state = await self._ask(handle, name) if folder.exists() else None
            if state is None:  # new, or cut off before its process ran
                if folder.exists():
                    await self.destroy(handle)
                await self._create(step, build, folder)
                if handle in self._stopped:
                    raise StandinError("interrupted")
                await self._begin_process(step, name, folder / "log", step["args"])
                state = "running"
            result: dict[str, Any] = {"exit": await self._end_of(handle, name, state)}
        except (StandinError, OSError, ValueError, subprocess.SubprocessError) as error:
            result = {"error": str(error)}
        (folder / "result.new").write_text(json.dumps(result))
        (folder / "result.new").replace(folder / "result.json")
        self._running.discard(handle)

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
            code, errors = await self.ctr("containers", "create", "--config", config, handle)
            if code == 0:
                code, errors = await self.ctr("tasks", "start", "--detach", "--null-io", handle)
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
        if self._network.certificates and step["kind"] != "task":
            binds.append(("/etc/ssl/certs", Path(self._network.certificates)))
        return binds

    async def _begin_process(self, step: Step, name: str, output: Path, args: list[str]) -> None:
        """Start a process in the step's container; the shim writes all that it says."""
        handle = step["handle"]
        user = (self._folder(handle) / "user").read_text()
        code, errors = await self.ctr(
            *("tasks", "exec", "--detach", "--exec-id", name, "--log-uri", f"file://{output}"),
            *("--cwd", step["cwd"], *(("--user", user) if user else ()), handle, *args),
        )
        if code != 0:
            fields = {"Type": "", "Message": f"proc start: {errors.removeprefix('ctr: ')}"}
            reply = json.dumps({**fields, "Handle": handle, "ProcessID": "", "Binary": ""})
            raise StandinError(f"start process: backend error: Exit status: 500, message: {reply}")

    async def _end_of(self, handle: str, name: str, state: int | str | None) -> int:
        """Wait for the end of a process that is in this state; its exit status."""
        while state == "running":
            while _lives(BUNDLES / handle / f"{name}.pid"):
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(POLL_SECONDS)  # containerd learns of the end a little later
            state = await self._ask(handle, name)
        if not isinstance(state, int):
            raise StandinError(f"no running task found: {handle}")
        return state

    async def _ask(self, handle: str, name: str) -> int | str | None:
        """The exit status of a process of the container, "running", or None if there is none."""
        code, errors = await self.ctr("tasks", "delete", "--exec-id", name, handle)
        if not errors.startswith("ctr: "):
            return code
        return None if "not found" in errors else "running"


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
