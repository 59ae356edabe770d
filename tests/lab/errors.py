# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Errors of the lab, with texts for the person who typed the command."""


class LabError(Exception):
    """An error for the lab's user: what is wrong, and what to do."""


class MachineError(LabError):
    """A machine did not come up, did not go down, or does not exist."""


class NoMachinesError(MachineError):
    """No machine can start here, however often it is tried."""


class CommandError(MachineError):
    """A command in a machine failed or ran out of time.

    Attributes:
        returncode: exit status; 124 when its time was up.
        output: what it wrote, standard error last.
    """

    def __init__(self, message: str, returncode: int, output: str):
        super().__init__(message)
        self.returncode = returncode
        self.output = output


class WrongUse(LabError):
    """A command that can't be carried out as given: unknown names, missing arguments."""
