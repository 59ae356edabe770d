# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with two cards whose processes are folders, to look for foreign use of its GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.fakes import Card, write_state

ROOT = Path(__file__).parents[2]
T4 = Card(number=1, model="Tesla T4", memory_mib=15360)
MIG = Card(mig=("MIG-a", "MIG-b"))
HOLDER = "0b7c1f8e-3f0a-4f0e-6d2b-1a2b3c4d5e6f"
SESSION = "/user.slice/user-1000.slice/session-1.scope"
HOST, CONTAINER = "pid:[4026531836]", "pid:[4026532448]"
# Looks once; says how often it waited and what was given back. Once the GPUs are listed, `then`
# happens, and while it waits, `later`.
ASK = """
import json, pathlib, sys, time
from gpu_agent.availability import external_processes as foreign
from gpu_agent.gpu.vendors.nvidia import nvml
from gpu_agent.model.leases import Lease
from gpu_agent.model.inventory import Inventory, State
from gpu_runtime.unavailable import EXTERNAL, EXTERNAL_PROCESS, Unavailable
asked = json.loads(sys.argv[1])
waits = []
def sleep(seconds):
    waits.append(seconds)
    for path, text in asked["later"].items():
        pathlib.Path(path).write_text(text)
time.sleep = sleep
gpus = nvml.read().gpus
for path, text in asked["then"].items():
    pathlib.Path(path).write_text(text)
found = foreign.look(
    Inventory(State.READY, gpus, vendor="nvidia"),
    lambda: None if asked["leases"] is None else {
        name: Lease(*lease) for name, lease in asked["leases"].items()
    },
    lambda: {
        uuid: Unavailable(EXTERNAL, EXTERNAL_PROCESS, text.removeprefix("in use outside CI: "))
        for uuid, text in asked["known"].items()
    },
    pathlib.Path(asked["root"]),
)
print(json.dumps({"found": {uuid: cause.describe() for uuid, cause in found}, "waits": waits}))
"""


class Machine:
    """Two cards (an A100, a T4), and processes in a /proc of its own."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self.nvml, self.root, self.state = nvml, folder / "root", folder / "state"
        self.namespace(HOST)
        self.cards(Card(), T4)

    def cards(self, *cards: Card) -> None:
        write_state(self.state, cards)

    def namespace(self, name: str) -> None:
        link = self.root / "proc/self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def process(
        self, pid: int, cgroup=SESSION, name=b"python3", exe="/usr/bin/python3", uid=1000, ns=HOST
    ):
        folder = self.root / f"proc/{pid}"
        (folder / "ns").mkdir(parents=True)
        (folder / "cgroup").write_text(f"4:memory:{cgroup}\n0::{cgroup}\n")
        (folder / "comm").write_bytes(name + b"\n")
        shown = name.replace(b"\n", b"\\n")  # as the kernel has it there
        ids = "\t".join([str(uid)] * 4).encode()
        (folder / "status").write_bytes(b"Name:\t" + shown + b"\nUid:\t" + ids + b"\n")
        (folder / "exe").symlink_to(exe)
        (folder / "ns/pid").symlink_to(ns)

    def set(self, card: int, **values: object) -> None:
        for name, value in values.items():
            path = self.state / "gpus" / str(card) / name.replace("_", "-")
            path.write_text(f"{value}\n")

    def ask(self, leases=(), known=(), later=(), then=()) -> dict:
        asked = {
            "root": str(self.root),
            # None: who has one can't be told.
            "leases": None if leases is None else dict(leases),
            "known": dict(known),
            "later": dict(later),
            "then": dict(then),
        }
        done = subprocess.run(
            [sys.executable, "-c", ASK, json.dumps(asked)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lib'}",
                "LD_LIBRARY_PATH": str(self.nvml),
                "FAKE_GPU_DIR": str(self.state),
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def look(self, **asked) -> dict[str, str]:
        return self.ask(**asked)["found"]
