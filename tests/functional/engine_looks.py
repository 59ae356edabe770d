# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a container of an engine sees of the GPUs of engine_machine.py, told from inside."""

import pytest

from tests.functional.containerd_worker import NODES
from tests.functional.engine_machine import DOCKER, PODMAN

GIVEN, CLOSED = "No such device or address", "Operation not permitted"
ABSENT = "No such file or directory"
LOOK = "for node in " + " ".join(NODES) + "; do cat /dev/$node 2>&1; done; env; true"
NONE = dict.fromkeys(NODES, ABSENT)
BOTH = pytest.mark.parametrize("engine", [PODMAN, DOCKER], ids=["podman", "docker"])
PLAIN, CUDA = "lab.test/plain", "lab.test/cuda"


def only(*gpus):
    shared = dict.fromkeys(("nvidiactl", "nvidia-uvm"), GIVEN if gpus else ABSENT)
    own = {f"nvidia{index}": GIVEN if index in gpus else ABSENT for index in (0, 1)}
    return {**own, **shared}


def seen(text):
    """What opening each node said, and the variables.

    NVIDIA's runtime appends a NVIDIA_VISIBLE_DEVICES of its own, which runc before 1.3 keeps.
    """
    lines = text.splitlines()
    nodes = {node: line.rpartition(": ")[2] for node, line in zip(NODES, lines, strict=False)}
    told = dict(line.split("=", 1) for line in reversed(lines[len(NODES) :]) if "=" in line)
    return nodes, told


def look(machine, engine, *words):
    done = machine.start(engine, "--rm", *words, "sh", "-c", LOOK)
    assert done.returncode == 0, done.stderr
    return seen(done.stdout)


def refused(machine, engine, *words):
    done = machine.start(engine, "--rm", *words, "sh", "-c", "true")
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def the_other(engine):
    """The other engine."""
    return DOCKER if engine == PODMAN else PODMAN
