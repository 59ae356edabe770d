# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's modules in a machine: one Python there imports them, a child of it makes each call.

A Python that begins anew for each call takes most of a second of a processor to import them.
"""

import json
import os
import select
import subprocess
import sys

from tests.lab.machines import CLEAN_ENV

PATIENCE = 300.0  # s, for the longest call on a busy machine


class Calls:
    """Such a Python, as a service of the machine. It begins with the first call.

    Args:
        machine: the lab's.
        path: its PYTHONPATH.
        argv: its arguments: a program that ends with `serve`.
    """

    def __init__(self, machine, path, *argv):
        self._machine, self._process = machine, None
        env = [f"{name}={value}" for name, value in {**CLEAN_ENV, "PYTHONPATH": path}.items()]
        self._command = [
            "/usr/bin/systemd-run", "--quiet", "--wait", "--pipe", "--collect",
            # What a call leaves behind stays, as after a hook.
            "--property=KillMode=process",
            "--", "/usr/bin/env", "-i", *env, "/usr/bin/python3", "-B", *argv,
        ]  # fmt: skip

    def ask(self, asked, died=0):
        """Return the answer to a call; None if its child ended with the exit status `died`."""
        # A reboot ends it.
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [*self._machine.enter_command(), *self._command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], f"no answer to {asked}"
        line = self._process.stdout.readline()
        assert line, f"the Python in the machine ended at {asked}"
        code, text = json.loads(line)
        assert code in (0, died), text
        return None if code else json.loads(text)

    def close(self):
        """End it."""
        if self._process:
            self._process.communicate(timeout=60)
            self._process = None


def serve(answer, plain=str):
    """Answer each call on stdin, a line of JSON: with its child's exit status and what that said.

    Args:
        answer: returns the answer to a call.
        plain: returns what stands in JSON for a value that has no form there.
    """
    for line in sys.stdin:
        # On no disk, which a test may fill.
        told = os.memfd_create("answer")
        if not (child := os.fork()):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(told, 2)  # for the traceback of an error
            text = json.dumps(answer(json.loads(line)), default=plain)
            os.ftruncate(told, 0)
            os.pwrite(told, text.encode(), 0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said = os.pread(told, os.fstat(told).st_size, 0).decode(errors="replace")
        os.close(told)
        print(json.dumps([os.waitstatus_to_exitcode(status), said]), flush=True)
