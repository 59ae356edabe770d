# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The rendered front and the back end in a folder, with runtimes that note how they ran."""

import json
import pathlib
import shutil
import subprocess

from gpu_agent import paths
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import TaskFolders
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_table import Holder, Table
from machine import templates
from tests.unit.refusals import code_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = pathlib.Path(__file__).parent / "golden"
GLOBAL = ["--root", "/run/containerd/runc/concourse", "--log-format", "json"]
# Concourse's, as its golden specs have them.
TASKS = TaskFolders("/tmp/build/", ("get", "put", "run"))
# What is Concourse's in a plan for the runtime.
CONCOURSE = {"runc": "/opt/concourse/current/bin/runc", "tasks": TASKS}
GPUS = [
    {
        "index": index,
        "uuid": f"GPU-0000000{index}-1111-2222-3333-444444444444",
        "model": "NVIDIA A100-SXM4-80GB",
        "devices": [f"GPU-0000000{index}-1111-2222-3333-444444444444"],
        "nodes": [],
    }
    for index in (0, 1)
]
ENVIRONMENT = {"PATH": "/opt/x/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/containerd/lib:"}
FOREIGN_CONFIG = {"NVIDIA_CTK_CONFIG_FILE_PATH": "/x", "XDG_CONFIG_HOME": "/x"}


class Rig:
    """A wrapper in a folder of its own, and a container's bundle."""

    def __init__(
        self, folder: pathlib.Path, *, back_end: bool = True, tasks: TaskFolders = TASKS
    ) -> None:
        self.tasks = tasks
        self.folder = folder
        self.bin = folder / "bin"
        self.store = folder / "run" / "gpu-ci" / "leases"
        self.journal = folder / "oci.log"
        self.policy_path = folder / "policy.json"
        self.lib = folder / "lib" / "gpu_runtime"
        for path in (self.bin, folder / "real", folder / "run"):
            path.mkdir(parents=True)
        if back_end:
            shutil.copytree(ROOT / "lib" / "gpu_runtime", self.lib)
        front = templates.render(
            paths.TEMPLATES,
            "runc",
            runc=folder / "real" / "runc",
            tasks=install.pattern(tasks),
            python="/usr/bin/python3",
            lib=self.lib,
            store=self.store,
            policy=self.policy_path,
            bin=self.bin,
            log=self.journal,
        )
        self._program(self.bin / "runc", front)
        for name in ("runc", "nvidia-container-runtime"):
            self._program(
                folder / "real" / name,
                "#!/bin/sh\n"
                f"for file in environ cmdline status; do cat /proc/$$/$file >{folder}/ran.$file; "
                "done\nexit 42\n",
            )
        self.policy()
        self.bundle = folder / "bundles" / "ID"
        self.bundle.mkdir(parents=True)
        self.config = self.bundle / "config.json"
        self.process = folder / "runc-process1"
        self.log = self.bundle / "log.json"

    @staticmethod
    def _program(path: pathlib.Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def policy(self, **changes: object) -> None:
        runtime = str(self.folder / "real" / "nvidia-container-runtime")
        content = {
            "version": 3,
            "tasks": {"parent": self.tasks.parent, "others": [*self.tasks.others]},
            "allocation": "exclusive",
            "gpus_per_task": 1,
            "wait_timeout": 0,
            "hijack_limit": 1800,
            "privileged_tasks": "no-gpu",
            "vendor": "nvidia",
            "nvidia_runtime": runtime,
            "config_home": "/etc/gpu-ci",
            "cordons": [str(self.folder / "cordons")],
            "gpus": GPUS,
            **changes,
        }
        self.policy_path.write_text(json.dumps(content))

    def spec(self, name: str) -> None:
        compact = json.dumps(json.loads((GOLDEN / f"{name}.json").read_text()), separators=",:")
        self.config.write_text(compact)

    def call(self, *words: object, cwd: pathlib.Path | None = None, **variables: str) -> int:
        """Call the wrapper as the shim does; its exit status. It must say nothing."""
        for path in self.folder.glob("ran.*"):
            path.unlink()
        argv = ["runc", *GLOBAL, "--log", str(self.log), *map(str, words)]
        done = subprocess.run(
            argv,
            executable=self.bin / "runc",
            env={**ENVIRONMENT, "PATH": f"{self.bin}:{ENVIRONMENT['PATH']}", **variables},
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == (b"", b"")
        return done.returncode

    def create(self, **variables: str) -> int:
        words = ["create", "--bundle", self.bundle, "--pid-file", self.bundle / "init.pid", "ID"]
        return self.call(*words, **variables)

    def exec(self, env: list[str]) -> int:
        self.process.write_text(json.dumps({"args": ["sh"], "env": env, "cwd": "/"}))
        return self.call("exec", "--process", self.process, "--detach", "ID")

    def hold(self, **holders: list[str]) -> None:
        """Let containers have these GPUs as long as this process lives, and nobody else any.

        They have had them for twelve and a half minutes.
        """
        (self.store / "containers").mkdir(parents=True, exist_ok=True)
        leases, since = Table({}), Host.now() - 750
        for name, gpus in holders.items():
            holder = Holder("/b", gpus, [], exclusive=True, since=since)
            holder.keeper = Host().me()
            leases.holders[name] = holder
        (self.store / "leases.json").write_text(json.dumps(leases.as_json()))

    @property
    def holders(self) -> dict[str, dict[str, object]]:
        return json.loads((self.store / "leases.json").read_text())["holders"]

    @property
    def records(self) -> list[str]:
        """Files of the containers that are known."""
        return sorted(path.name for path in (self.store / "containers").iterdir())

    @property
    def decisions(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.journal.read_text().splitlines()]

    @property
    def ran(self) -> list[str]:
        """What came next: its name (`/bin/sh` runs it) and its arguments."""
        words = (self.folder / "ran.cmdline").read_text().split("\0")[1:-1]
        return [pathlib.Path(words[0]).name, *words[1:]]

    @property
    def environment(self) -> dict[str, str]:
        entries = (self.folder / "ran.environ").read_text().split("\0")[:-1]
        found = dict(entry.split("=", 1) for entry in entries)
        found.pop("PWD", None)  # dash exports it
        return found

    @property
    def refusal(self) -> str:
        assert not list(self.folder.glob("ran.*")), "a runtime ran after a refusal"
        (line,) = self.log.read_text().splitlines()
        said = json.loads(line)
        assert said["level"] == "error"
        assert said["time"].endswith("Z")
        assert code_of(said["msg"]) == said["code"]
        return said["msg"]

    @property
    def code(self) -> str:
        """The code of the last refusal."""
        return code_of(self.refusal)
