# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Look into containers: what each sees, and what it can open that it was not given.

Two threads may look at a time, each into its own container.
"""

import dataclasses
import secrets
import typing

from gpu_agent import paths as wrapper
from gpu_agent.model.inventory import Gpu
from gpu_runtime.policy import SELF_TEST_CONTAINER
from gpu_selftest.check import Check, Outcome, Result
from gpu_selftest.isolation import container_view as views
from gpu_selftest.isolation import containers, rootfs
from gpu_selftest.isolation.container_view import View
from gpu_selftest.isolation.containers import Container, ContainerError, Containers, Step
from gpu_selftest.settings import Settings
from gpu_selftest.starvation_clock import StarvedError

# The time limit of a look, in seconds: NVML may have to initialise the GPUs.
_LOOK: typing.Final = 30.0

_PROBE: typing.Final = [
    *(wrapper.PYTHON, "-I", "-S"),
    *(str(rootfs.PROGRAMS / "probe.py"), str(rootfs.PROGRAMS)),
]


class Inspector:
    """Makes containers that can be looked into.

    Attributes:
        nodes: the nodes of all GPUs here.
        owners: the GPU of each device that tasks get, by the device's id.
        nested: whether this machine is itself a container, in which no device rules are set.
        leaked: each way to a GPU beyond its lease that a container has, with the container's id:
            the path of a node that it opened; if nested, see views.ways_past.
        looks: the id of the container of each look.
    """

    def __init__(self, settings: Settings, made: Containers) -> None:
        self.nodes = views.host_nodes(settings.gpus)
        self.owners: dict[str, Gpu] = {
            device: gpu for gpu in settings.gpus for device in gpu.devices
        }
        self.nested = containers.is_nested()
        self.leaked: dict[str, str] = {}
        self.looks: list[str] = []
        self._made = made
        self._application = settings.application
        self._run = secrets.token_hex(3)

    def id(self, name: str) -> str:
        """Return the id of a container with this name; no other run of the self-test has it."""
        return f"{SELF_TEST_CONTAINER}{name}-{self._run}"

    def create(self, name: str, step: Step, **limits: float) -> Container:
        """Start a container with the id of this name; see Containers.create."""
        mounts = [*step.mounts, *views.planted(self.nodes)]
        whole = dataclasses.replace(step, mounts=mounts)
        return self._made.create(self.id(name), whole, **limits)

    def look(self, container: Container, exec_id: str = "task") -> View:
        """Return what the container sees.

        Raises:
            ContainerError: it could not be looked into.
            StarvedError: the machine has no time or room for it.
        """
        numbers = [f"{major}:{minor}" for major, minor in (node.number for node in self.nodes)]
        done = container.exec([*_PROBE, *numbers], timeout=_LOOK, exec_id=exec_id)
        try:
            view = views.parse(done.stdout)
        except (ValueError, KeyError, TypeError) as error:
            said = done.stderr.strip().rpartition("\n")[2] or str(error)
            raise ContainerError(f"{_PROBE[3]} ended with {done.returncode}: {said}") from error
        if lacking := views.lacks(view):
            raise StarvedError(f"{container.id} can't be looked into: {', '.join(lacking)}")
        self.looks.append(container.id)
        past = views.ways_past if self.nested else views.leaks
        for path in past(view, self.nodes):
            self.leaked.setdefault(path, container.id)
        return view

    def see(self, name: str, step: Step) -> View:
        """Make a container, return what it sees, and remove it.

        Raises:
            ContainerError: it could not be made or looked into.
            StarvedError: the machine has no time or room for it.
        """
        with self.create(name, step) as container:
            return self.look(container)

    def failed(self, check: Check, text: str, *, remedy: str = "", **named: typing.Any) -> Result:
        """Return a failure; APP in its remedy, by default the check's, is this application."""
        told = (remedy or check.remedy).replace("APP", self._application)
        return check.result(Outcome.FAILED, text, remedy=told, **named)
