# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""One lab command's hold of the lab: its directory, its lock, its model."""

import contextlib
import fcntl
import os
import pathlib
import time
from collections.abc import Callable, Iterator

from tests.lab import outfit
from tests.lab.errors import WrongUse
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_DIR = "/var/lib/gpu-ci-lab"


class Progress:
    """Prints lines with the seconds since the command began."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print one line."""
        print(f"[{self.seconds:6.1f}s] {line}", flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._begun


class Lab:
    """The lab's model and machines, open for one command.

    Args:
        state_dir: the lab's directory.
        say: takes progress lines.
    """

    def __init__(self, state_dir: pathlib.Path, say: Callable[[str], None]):
        self.state_dir = state_dir
        self.say = say
        self.controller = Controller(
            state_dir,
            say,
            outfitter=lambda machine, wanted: outfit.fit(machine, wanted, state_dir / "shared"),
        )
        self.model = Model(self.controller)
        self.store = self.controller.store
        self.park = self.controller.park

    def settle(self) -> None:
        """Run the agents until all units have settled."""
        self.controller.settle()

    def setting(self, key: str, value: str | None = None) -> str:
        """A setting of the lab itself, kept in its model; sets it when a value is given."""
        if value is not None:
            self.store.do("INSERT OR REPLACE INTO model VALUES (?, ?)", f"lab-{key}", value)
        return str(self.store.value("SELECT value FROM model WHERE key = ?", f"lab-{key}") or "")


def state_dir() -> pathlib.Path:
    """Where the lab keeps its state: GPUCI_LAB_DIR."""
    return pathlib.Path(os.environ.get("GPUCI_LAB_DIR") or DEFAULT_DIR).resolve()


def is_up() -> bool:
    """Whether there is a lab: one that `lab up` or `lab deploy` began."""
    return (state_dir() / "model.sqlite").exists()


def look(say: Callable[[str], None] = print) -> Lab:
    """Open the lab without taking the lock, to read or to reach machines.

    Raises:
        WrongUse: there is none.
    """
    if not is_up():
        raise WrongUse(f"no lab is up in {state_dir()}: start it with `make lab` (or `lab up`)")
    return Lab(state_dir(), say)


@contextlib.contextmanager
def changing(say: Callable[[str], None], make: bool = False) -> Iterator[Lab]:
    """Open the lab to change it: one command at a time.

    Args:
        say: takes progress lines.
        make: whether to begin a lab where there is none.

    Raises:
        WrongUse: there is none, and none is to be made.
        tests.lab.errors.NoMachinesError: one is to be made, and no machine can start here.
    """
    if not make:
        look().controller.close()
    directory = state_dir()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(directory, say):
        park = Park(directory)
        if make and not any(park.get(name).is_up() for name in park.names()):
            park.check()
        lab = Lab(directory, say)
        try:
            yield lab
        finally:
            lab.controller.close()


@contextlib.contextmanager
def locked(directory: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lab's lock; wait for its holder."""
    path = directory / "lock"
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another lab command to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        if not path.exists():
            raise WrongUse("the lab was destroyed meanwhile")
        yield
