# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Put the agent on this machine, and take it away: the copy, the command, the settings file."""

import collections.abc
import dataclasses
import pathlib
import typing

from gpu_agent import install as app
from gpu_agent import paths
from gpu_agent.availability import external_use, retests
from gpu_agent.availability import lease_report as leases
from gpu_agent.engines import registry as engines
from gpu_agent.gpu_run import service as gpu_run_service
from gpu_agent.health import service as health_service
from gpu_agent.reporting.receipts import log as receipts
from gpu_agent.runtime import install as runtime
from gpu_agent.runtime import policy
from gpu_runtime.refusal import Refused
from gpu_runtime.unavailable import UNUSABLE, Unavailable
from gpu_selftest import service as selftest_service
from gpu_selftest import settings as selftest_settings
from gpu_selftest.compute import environment
from gpu_standalone import settings
from gpu_standalone.owner import Owner
from gpu_standalone.settings import Settings
from machine import files, templates
from machine import systemd as services
from machine.errors import PartError

COMMAND: typing.Final = pathlib.Path("/usr/local/sbin/gpu-ci-agent")
TEMPLATES: typing.Final = pathlib.Path(__file__).resolve().with_name("templates")
SERVICE: typing.Final = "gpu-ci-agent.service"
TIMER: typing.Final = "gpu-ci-agent.timer"

Say = collections.abc.Callable[[str], None]

_LEAVES: typing.Final = Unavailable(UNUSABLE, "unit-rests", "the agent is being removed")

Remove = collections.abc.Callable[[], object]
Parts = collections.abc.Sequence[tuple[str, tuple[Remove, ...]]]


class InUseError(PartError):
    """GPUs are in use, so the agent is not removed; the text names the holders."""


def ensure_timer() -> bool:
    """Start the agent at each boot, and look again every five minutes. Return True if new."""
    changed = services.ensure_unit(SERVICE, templates.render(TEMPLATES, SERVICE, command=COMMAND))
    renewed = services.ensure_unit(TIMER, templates.render(TEMPLATES, TIMER))
    return services.ensure_running(TIMER, restart=renewed) or changed


def remove_timer() -> None:
    """Remove the timer and the service that it starts."""
    services.remove_unit(TIMER)
    services.remove_unit(SERVICE)


def is_started() -> bool:
    """Return whether `start` has set the agent up on this machine."""
    return services.show(TIMER, "LoadState")["LoadState"] == "loaded"


def close() -> tuple[str, ...]:
    """Let no request get a GPU from now on. Return the holders that use GPUs, for people.

    Raises:
        InUseError: the leases cannot be read.
    """
    external_use.close((uuid, _LEAVES) for uuid in policy.handed_out())
    try:
        return tuple(leases.occupants(paths.STORE).values())
    except (OSError, ValueError, Refused) as error:
        raise InUseError(
            f"The leases cannot be read, so the holders of GPUs are unknown: {error}. End all "
            "that uses a GPU, then reboot, which empties them"
        ) from error


def reopen() -> None:
    """Let requests get GPUs again."""
    external_use.close(())


# In this order: a part goes before the parts that its programs run from, and the copy, from which
# this program may run, near the end.
_PARTS: typing.Final[Parts] = (
    ("the timer", (remove_timer,)),
    ("the GPU health service", (health_service.remove,)),
    ("gpu-run", (gpu_run_service.remove,)),
    ("the runtime of the container engines", (engines.remove,)),
    ("the GPU runtime", (runtime.remove,)),
    (
        "the self-test and the programs",
        (environment.remove, selftest_settings.remove, retests.remove, selftest_service.remove),
    ),
    ("the usage records", (receipts.remove,)),
)


@dataclasses.dataclass(frozen=True)
class Installation:
    """The agent on this machine.

    Attributes:
        owner: the owner of the machine.
        command: the file of the command.
        settings: the file of the settings.
        copy: copies the programs, as gpu_agent.install.ensure does.
        is_started: returns whether the agent is set up.
        close: lets no request get a GPU, and returns the holders that use GPUs.
        reopen: lets requests get GPUs again.
        parts: the parts that are removed, in this order.
    """

    owner: Owner = Owner()
    command: pathlib.Path = COMMAND
    settings: pathlib.Path = settings.PATH
    copy: collections.abc.Callable[..., bool] = app.ensure
    is_started: collections.abc.Callable[[], bool] = is_started
    close: collections.abc.Callable[[], tuple[str, ...]] = close
    reopen: Remove = reopen
    parts: Parts = _PARTS

    def install(self, say: Say) -> bool:
        """Put this version on the machine. What an earlier version started goes on.

        If this is killed at any point, it can be called again.

        Args:
            say: reports a step that takes long.

        Returns:
            Whether anything had to be changed.

        Raises:
            gpu_standalone.owner.TakenError: the machine belongs to a unit of Juju.
            gpu_agent.install.AppError: the machine has no room for the copy.
            settings.SettingsError: the settings that are here cannot be used by this version.
        """
        self.owner.check()
        kept = settings.read(self.settings)
        changed = self.owner.claim(self.command)
        say(f"Copying the programs to {app.HOME}")
        changed |= self.copy(before=self._write_command)
        if kept is None:
            files.ensure_directory(self.settings.parent)
            changed |= files.ensure_file(self.settings, settings.as_text(Settings()))
        return changed

    def _write_command(self, home: pathlib.Path) -> bool:
        """Let the command run the copy in this folder. Return True if that changed anything."""
        # Without the command a unit of Juju may have taken the machine while the copy was made.
        self.owner.claim(self.command)
        files.ensure_directory(self.command.parent)
        content = templates.render(
            TEMPLATES, COMMAND.name, app=home, stamp=app.STAMP, python=paths.PYTHON
        )
        return files.ensure_file(self.command, content, mode=0o755)

    def remove(self, say: Say, *, leave_running: bool) -> None:
        """Take all of the agent away. If this is killed at any point, it can be called again.

        Args:
            say: reports each step.
            leave_running: whether to do that while GPUs are in use. Their holders keep them.

        Raises:
            InUseError: GPUs are in use, and `leave_running` is false; nothing has changed.
            gpu_standalone.owner.TakenError: the machine belongs to a unit of Juju.
        """
        self.owner.check()
        running = self.close()
        if running and not leave_running:
            self.reopen()
            raise InUseError(
                f"GPUs are in use by {', '.join(running)}: wait for the end or end them, then "
                "remove the agent; or use remove --leave-running, and they keep their GPUs until "
                "they end"
            )
        for name, parts in self.parts:
            say(f"Removing {name}")
            for part in parts:
                part()
        files.ensure_absent(self.command)
        self.owner.give_up()
        for holder in running:
            say(f"{holder} keeps its GPUs until it ends")
