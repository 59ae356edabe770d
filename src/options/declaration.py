# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The declaration of an option: all that Juju, the code and the reference know about it."""

import collections.abc
import dataclasses
import enum
import typing

from options.part import Part
from options.readers import Raw, choice


class Group(enum.Enum):
    """A topic; config.yaml and the reference list the options by topic, in this order."""

    EVERYDAY = "Everyday"
    OUTSIDE = "Existing Concourse"
    GPUS = "GPUs"
    ENGINES = "Container engines and gpu-run"
    DRIVER = "Driver and container toolkit"
    CHECKS = "Checks"
    REPORTS = "Job log and metrics"
    RELEASE = "Concourse release"
    WEB = "Web"
    RUNNERS = "Runners of Gitea and GitHub"
    CONTAINERS = "Containers"
    LIFECYCLE = "Lifecycle"


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of the charm.

    Attributes:
        name: Juju's name of it.
        default: its value until an operator sets it; None: it is a secret, and not set.
        text: its description in config.yaml and the reference.
        group: the topic that it is listed under.
        part: the part of the unit that stays unchanged if the value cannot be used.
        field: the field of the dataclass of options that has the value.
        read: makes the value of that field. None: it is a boolean or one of `values`.
        values: all that may be set; empty if other values are possible.
    """

    name: str
    default: str | int | bool | None
    text: str
    group: Group
    part: Part
    field: str
    read: collections.abc.Callable[[Raw], typing.Any] | None = None
    values: tuple[str, ...] = ()

    @property
    def is_secret(self) -> bool:
        """Whether its value is the URI of a Juju secret."""
        return self.default is None

    @property
    def type(self) -> str:
        """Juju's type of it: `string`, `int`, `boolean` or `secret`."""
        types = {bool: "boolean", int: "int", str: "string", type(None): "secret"}
        return types[type(self.default)]

    def value(self, raw: Raw) -> typing.Any:
        """Read its value.

        Args:
            raw: all options, with the defaults of those that are not set.

        Raises:
            options.values.OptionError: it cannot be used.
        """
        if self.read:
            return self.read(raw)
        return choice(raw, self.name, self.values) if self.values else bool(raw[self.name])


class Read(typing.Protocol):
    """Reads options; a value that cannot be used is noted, and read as the default."""

    def __call__(self, declared: tuple[Option, ...]) -> dict[str, typing.Any]:
        """Return the values of these options, by the fields that they belong to."""
        ...


@dataclasses.dataclass(frozen=True)
class CiOptions:
    """The options of a CI system.

    Attributes:
        name: the value of the option ci-system that chooses it.
        text: what the description of ci-system says of it.
        modes: the values of deployment-mode that it can be.
        declared: its options.
        make: makes the value of `Options.ci`, which only the CI system reads.
        ports: the TCP ports that it takes on this machine, if its options are these.
    """

    name: str
    text: str
    modes: tuple[str, ...]
    declared: tuple[Option, ...] = ()
    make: collections.abc.Callable[[Read], object] = lambda _: None
    ports: collections.abc.Callable[[Raw], tuple[int, ...]] = lambda _: ()
