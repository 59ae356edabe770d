# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Provide Concourse in the lab, the real one or the stand-in, and its command-line tool fly."""

import gzip
import json
import os
import pathlib
import secrets
import subprocess

from tests import fly, once
from tests.lab import download, outfit
from tests.lab.errors import LabError, WrongUse
from tests.lab.session import Lab

FLY_IN_RELEASE = "/opt/concourse/current/fly-assets/fly-linux-amd64.tgz"


def is_real() -> bool:
    """Return whether the real Concourse is at hand."""
    return bool(os.environ.get("GPUCI_CONCOURSE_TARBALL")) or download.CACHED.is_file()


def choose(lab: Lab) -> tuple[pathlib.Path, str]:
    """Return the release tarball that the charm gets as its resource, and its display name.

    GPUCI_CONCOURSE_TARBALL if it is set, else the cache that `lab fetch concourse` fills, else the
    stand-in, which is made here (a few seconds).

    Raises:
        WrongUse: GPUCI_CONCOURSE_TARBALL does not name a file.
        LabError: the stand-in cannot be made.
    """
    given = os.environ.get("GPUCI_CONCOURSE_TARBALL", "")
    if given:
        path = pathlib.Path(given)
        if not path.is_file():
            raise WrongUse(f"GPUCI_CONCOURSE_TARBALL: {path} is not a file")
        return path.resolve(), f"real ({path.name})"
    if download.CACHED.is_file():
        return download.CACHED, f"real ({download.CACHED.name}, from the cache)"
    from tests.fakes.concourse import build

    path = lab.state_dir / "build/concourse-standin.tgz"
    path.parent.mkdir(exist_ok=True)
    try:
        once.put("concourse.tgz", build.build, path)
    except build.BuildError as error:
        raise LabError(f"cannot make the Concourse stand-in: {error}") from error
    return path, "stand-in (lab fetch concourse, or GPUCI_CONCOURSE_TARBALL, for the real one)"


def another(lab: Lab, path: pathlib.Path) -> None:
    """Write the same Concourse as another tarball, unlike each before, as for an upgrade."""
    tarball, _ = choose(lab)
    path.write_bytes(tarball.read_bytes() + gzip.compress(b"", mtime=secrets.randbits(32)))


class Fly(fly.Fly):
    """fly against the lab's web unit.

    Args:
        lab: the lab.
        web: the web unit; the first unit that has Concourse's web when empty.

    Raises:
        WrongUse: no such unit.
    """

    def __init__(self, lab: Lab, web: str = ""):
        self._lab = lab
        self._web = web or self._find_web()
        super().__init__(lab.state_dir / "fly", {"rootfs_uri": f"raw://{outfit.ROOTFS}"})

    def _find_web(self) -> str:
        for app in self._lab.store.column("SELECT name FROM application WHERE played = ''"):
            mode = self._lab.model.config(app).get("deployment-mode")
            sql = "SELECT name FROM unit WHERE app = ? ORDER BY number LIMIT 1"
            unit = self._lab.store.value(sql, app)
            if mode in ("web", "all") and unit:
                return str(unit)
        raise WrongUse("no web unit in the lab: deploy one with --config deployment-mode=web")

    def login(self) -> None:
        """Get fly from the web unit's release and log in as its administrator.

        Raises:
            LabError: web does not answer, or refuses.
        """
        machine = self._lab.model.machine(self._web)
        self.home.mkdir(exist_ok=True, mode=0o700)
        unpack = f"tar -xzOf {FLY_IN_RELEASE} fly"
        with open(self.home / "fly.new", "wb") as file:
            subprocess.run(
                [*machine.enter_command(), "/bin/sh", "-c", unpack],
                stdout=file, check=True, timeout=120,
            )  # fmt: skip
        (self.home / "fly.new").chmod(0o700)
        (self.home / "fly.new").replace(self.program)
        answer = self._credentials()
        self.login_as(answer["url"], answer["username"], answer["password"])

    def _credentials(self) -> dict[str, str]:
        lab = self._lab
        action = lab.model.run_action(self._web, "get-admin-password", {})
        lab.settle()
        row = lab.store.row("SELECT * FROM action WHERE id = ?", action)
        if not row or row["status"] != "completed":
            why = row["message"] if row else "it is gone"
            raise LabError(f"{self._web} does not report its administrator's password: {why}")
        return json.loads(row["results"])

    def command(self, *arguments: str) -> list[str]:
        """A fly command line that reaches the machines."""
        return self._lab.park.network.inside(super().command(*arguments))
