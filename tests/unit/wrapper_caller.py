# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The back end of the wrapper, called in children of this process and killed where a test says."""

import fcntl
import os
import signal
import time

from gpu_runtime import holder_usage as usage
from gpu_runtime import lease_store as store
from gpu_runtime import task_call as wrapper
from gpu_runtime.lease_table import Holder
from tests.killing import die_before
from tests.unit.wrapper_rig import GOLDEN, GPUS

UUIDS = [gpu["uuid"] for gpu in GPUS]
EXECED = 42  # what the stand-ins for runtimes end with
# Where a call can be killed, that is, whatever it does to the world or becomes.
DEADLY = {
    os: ("open", "write", "fchown", "fchmod", "close", "rename", "unlink", "makedirs", "execve"),
    fcntl: ("flock",),
    usage: ("Process",),
    time: ("sleep",),
}


class Bundle:
    """A container's bundle beside the rig's own."""

    def __init__(self, rig, name):
        self.folder = rig.folder / "bundles" / name
        self.folder.mkdir(exist_ok=True)
        self.config = self.folder / "config.json"
        self.name = name
        # No two containers have one root.
        text = (GOLDEN / "task.json").read_text()
        self.config.write_text(text.replace("/live/image/", f"/live/image-{name}/"))

    @property
    def create(self):
        return ["create", "--bundle", str(self.folder), self.name]


class Caller:
    """Calls the back end in a child of this process, ten times as fast as in a new Python."""

    def __init__(self, rig):
        self.rig = rig
        self.places = [
            *(str(rig.folder / "real" / "runc"), str(rig.policy_path), str(rig.store)),
            *(str(rig.bin), str(rig.journal), "--log", str(rig.log)),
        ]

    def call(self, words, die_at=0, prepare=None):
        """Its exit status, or minus the signal; killed in front of the step `die_at` from 1 on."""
        for path in (self.rig.log, *self.rig.folder.glob("ran.*")):
            path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            signal.alarm(60)  # a test that hangs says nothing
            try:
                if prepare:
                    prepare()
                if die_at:
                    die_before(die_at, DEADLY)
                wrapper.main([*self.places, *words])
            except SystemExit as end:
                os._exit(end.code)
            finally:
                os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def table(self):
        return store.Store(str(self.rig.store)).read()

    def holders(self):
        return {name: holder.gpus for name, holder in self.table().holders.items()}

    def records(self):
        return sorted(path.stem for path in (self.rig.store / "containers").glob("*.json"))


def hold(rig, call):
    with store.Store(str(rig.store)) as table:
        holder = Holder("/nowhere", UUIDS[:1], [], exclusive=True, since=0)
        holder.keeper = call
        table.holders["HOLDER"] = holder
