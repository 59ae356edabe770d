# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make, find and remove all machines of one lab."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence

from tests import runs
from tests.lab import cgroups, network, obstacles, seed
from tests.lab.errors import MachineError, NoMachinesError
from tests.lab.machines import Machine, end_cgroups


class Park:
    """All machines of one lab.

    Args:
        state_dir: the lab's directory, on a real file system (not overlayfs); made when missing.
    """

    def __init__(self, state_dir: pathlib.Path):
        self.state_dir = state_dir.resolve()
        self._machines = self.state_dir / "machines"
        tag = hashlib.sha256(str(self.state_dir).encode()).hexdigest()[:8]
        self.network = network.Network(f"gpucilab-{tag}")
        # Threads bring machines up at the same time.
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """The machines that exist, up or down."""
        if not self._machines.is_dir():
            return []
        return sorted(p.parent.name for p in self._machines.glob("*/settings.json"))

    def get(self, name: str) -> Machine:
        """A machine by name.

        Raises:
            MachineError: there is none.
        """
        if name not in self.names():
            raise MachineError(
                f"there is no machine {name!r}: have {', '.join(self.names()) or 'none'}"
            )
        return Machine(self._machines / name, self.network)

    def up(
        self,
        name: str,
        binds: Sequence[str] = (),
        binds_ro: Mapping[str, pathlib.Path] | None = None,
    ) -> Machine:
        """Make the machine where it does not exist, boot it where it is down.

        Args:
            name: lower-case letters, digits and dashes.
            binds: directories of the machine that must lie on a real file system, since overlayfs
                cannot be mounted on overlayfs; empty at first, kept as long as the machine.
            binds_ro: paths in the machine and what of the host they show, read-only.

        Raises:
            NoMachinesError: none can come up here.
            MachineError: it does not come up.
        """
        directory = self._machines / name
        if not (directory / "settings.json").exists():
            self._check_file_system()
            self._make(directory, binds, binds_ro or {})
        machine = self.get(name)
        try:
            with self._lock:
                runs.note("network", self.network.name)
                self.network.up()
            machine.up()
        except (MachineError, OSError):
            self.check()
            raise
        return machine

    def check(self) -> None:
        """Try what a machine needs.

        Raises:
            NoMachinesError: no machine can start here; with the reason and the remedy.
        """
        self._check_file_system()
        if why := obstacles.find(self.network, self.state_dir / "trial"):
            if not any(self.get(name).is_up() for name in self.names()):
                self.network.down()
            raise NoMachinesError(why)

    def _check_file_system(self) -> None:
        self._machines.mkdir(parents=True, exist_ok=True)
        show = ["/usr/bin/stat", "--file-system", "--format=%T", str(self._machines)]
        kind = subprocess.run(show, capture_output=True, text=True, check=True, timeout=30).stdout
        if kind.strip() in ("overlayfs", "nfs"):
            raise NoMachinesError(
                f"{self.state_dir} is on {kind.strip()}, which cannot hold a machine's layer: "
                "set GPUCI_LAB_DIR to a directory on ext4, xfs, btrfs or tmpfs"
            )

    def _make(
        self, directory: pathlib.Path, binds: Sequence[str], binds_ro: Mapping[str, pathlib.Path]
    ) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", directory.name):
            raise MachineError(f"{directory.name!r} is not a machine name: use a-z, 0-9 and -")
        shutil.rmtree(
            directory, ignore_errors=True
        )  # Half made by a command that was interrupted.
        (directory / "upper").mkdir(parents=True)
        with self._lock:
            address = self._claim_address(directory)
        seed.seed(directory / "upper", directory.name, address, self.state_dir)
        sources: dict[str, str] = {}
        for path in binds:
            source = directory / "binds" / path.strip("/").replace("/", "-")
            source.mkdir(parents=True)
            sources[path] = str(source)
        settings = {
            "address": address,
            "cgroups": [],
            "binds": sources,
            "binds_ro": {path: str(source) for path, source in binds_ro.items()},
        }
        (directory / "settings.new").write_text(json.dumps(settings))
        os.replace(directory / "settings.new", directory / "settings.json")

    def _claim_address(self, directory: pathlib.Path) -> str:
        taken = [p.read_text() for p in self._machines.glob("*/address")]
        address = network.free_address(taken)
        (directory / "address").write_text(address)
        return address

    def remove(self, name: str) -> None:
        """Kill the machine and delete all of it. One that does not exist is gone already."""
        directory = self._machines / name
        if (directory / "settings.json").exists():
            Machine(directory, self.network).kill()
        shutil.rmtree(directory, ignore_errors=True)

    def destroy(self) -> None:
        """Remove every machine, finished or half made, and the network. May be called twice."""
        if self._machines.is_dir():
            for directory in list(self._machines.iterdir()):
                self.remove(directory.name)
        # Machines whose directories were deleted.
        end_cgroups(cgroups.find(self.network.name))
        self.network.down()
        shutil.rmtree(self._machines, ignore_errors=True)
