# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Start workload/, the program that makes a GPU work, and read its answer."""

import collections.abc
import json
import pathlib
import typing

from gpu_selftest.compute.environment import Environment
from gpu_selftest.starvation_clock import Pulse, StarvedError
from machine import files, process

PROGRAM: typing.Final = pathlib.Path(__file__).with_name("workload")


class WorkFailedError(Exception):
    """The work broke off. The text is its last output, or how it ended."""


class UnsupportedError(Exception):
    """PyTorch has no code for this GPU, which proves no fault of the GPU."""


def argv(environment: Environment, mode: str, device: str, *options: str) -> list[str]:
    """Return the command line of a mode of workload/; see its `--help`."""
    return [*environment.command, str(PROGRAM), mode, "--device", device, *options]


def variables(device: str, gpus: collections.abc.Iterable[str]) -> dict[str, str]:
    """Return the variables that it needs on this machine; in a container it needs none.

    Args:
        device: `cuda` or `cpu`.
        gpus: ids of the GPUs or MIG devices that it may use.
    """
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus) if device == "cuda" else ""}


def ask(
    environment: Environment,
    mode: str,
    device: str,
    gpus: collections.abc.Iterable[str],
    *,
    timeout: float,
    clock: Pulse,
) -> dict[str, typing.Any]:
    """Run one mode on this machine and return its answer.

    Args:
        environment: where it runs.
        mode: of workload/.
        device: `cuda` or `cpu`.
        gpus: ids of the GPUs or MIG devices that it may use.
        timeout: in seconds; then it is killed.
        clock: tells whether the machine had time for it meanwhile.

    Raises:
        WorkFailedError: it crashed, took too long, or gave no answer.
        UnsupportedError: PyTorch has no code for the GPU.
        StarvedError: the machine had no time, memory or room for it.
    """
    scratch = environment.scratch
    files.ensure_directory(scratch)
    clock.start(timeout)
    try:
        done = process.run(
            argv(environment, mode, device, "--scratch", str(scratch)),
            timeout=timeout,
            env=variables(device, gpus),
        )
    except process.CommandError as error:
        words = broke_off(error.returncode, error.stderr, timeout)
        hangs = error.returncode is None and clock.is_sure(timeout)
        raise (StarvedError if error.starved and not hangs else WorkFailedError)(words) from error
    finally:
        clock.stop()
        files.ensure_absent(scratch)
    return answer(done.stdout)


def answer(stdout: str) -> dict[str, typing.Any]:
    """Return the program's answer: the last line of its output.

    Raises:
        WorkFailedError: that is not an answer.
        UnsupportedError: PyTorch has no code for the GPU.
    """
    lines = stdout.splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WorkFailedError("the program ended without an answer")
    told = typing.cast("dict[str, typing.Any]", found)
    if "unsupported" in told:
        raise UnsupportedError(str(told["unsupported"]))
    return told


def broke_off(returncode: int | None, stderr: str, timeout: float) -> str:
    """Describe how a program ended that failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if returncode is None:
        return f"no answer within {timeout:g} s"
    if returncode < 0:
        return f"killed by signal {-returncode}" + (f": {lines[-1]}" if lines else "")
    return lines[-1] if lines else f"ended with exit status {returncode} and no output"
