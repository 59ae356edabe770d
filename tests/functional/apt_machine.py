# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A booted machine whose only packages' archives are two signed repositories of a test."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

import pytest
import tenacity

from tests.fakes import aptrepo
from tests.functional.forked_calls import Calls
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]
NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(not shutil.which("systemd-nspawn"), reason="not installed: systemd-nspawn"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
SITE_PACKAGES = pathlib.Path(tenacity.__file__).parents[1]
# Else the distribution's own apt may begin in the middle of a test.
ALONE = """
systemctl mask -q --now apt-daily.timer apt-daily-upgrade.timer
# What a host's apt calls after each change, such as PackageKit, takes longer than the change.
cd /etc/apt/apt.conf.d && rm -f 20packagekit 50appstream docker-clean
"""
# Only what a test has made is known to apt, and a lock is waited for no longer than it must be.
PREPARE = f"""
{ALONE}
rm -rf /etc/apt/sources.list.d && mkdir -p /etc/apt/sources.list.d
echo 'deb [signed-by=/srv/test/archive.asc] copy:/srv/test/archive /' >/etc/apt/sources.list
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/test
apt-get -qq update
"""
# One Python makes all calls, each in a child of its own.
CALLS = """
import os
from machine import apt, apt_errors, packages, process, repositories
from tests.functional.forked_calls import serve
commands, said, run = [], [], process.run
process.run = lambda argv, **more: commands.append(list(argv)) or run(argv, **more)
apt.LOCK_WAIT = 1
def answer(given):
    global repository
    os.environ.update(given.get("env", {}))
    if "repository" in given:
        about = given["repository"]
        repository = repositories.Repository(**{**about, "pins": tuple(map(tuple, about["pins"]))})
    told = {"error": "", "passes": None, "signature": None, "value": None}
    try:
        told["value"] = eval(given["code"], globals())
    except apt_errors.PackageError as error:
        told.update(error=str(error), passes=error.passes, signature=error.signature)
    return {**told, "said": said, "commands": commands}
serve(answer)
"""
# As at first, without apt: `remove_installed` has tests of its own.
RESET = """
rm -rf /var/lib/gpu-ci /etc/apt/*/gpu-ci-* /run/gpuci-*
names=$(dpkg-query -W -f '${Package}\n' 'gpuci-*' 2>/dev/null | grep -vx gpuci-before)
for name in $names; do
    [ -e "/var/lib/dpkg/info/$name.list" ] && echo "$name"
done | xargs -r dpkg --purge --force-all >/dev/null 2>&1
dpkg-query -W -f '${Package} ${db:Status-Want} ${db:Status-Status}\n' 'gpuci-*'
"""


class AptMachine:
    """One such machine.

    Attributes:
        machine: the lab's.
        folder: of the host; the machine sees it as /srv/test and can't write there.
        archive: the distribution's repository, in that folder; apt knows it.
        mirror: another one, which apt does not know.
        keys: of both.
    """

    def __init__(self, machine, folder):
        self.machine, self.folder = machine, folder
        self.archive, self.mirror = folder / "archive", folder / "mirror"
        self.keys = {
            name: aptrepo.Key.make(folder / f"key-{name}") for name in ("archive", "mirror")
        }
        (folder / "archive.asc").write_text(self.keys["archive"].public)
        path = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"
        self._calls = Calls(machine, path, "-c", CALLS)

    def close(self):
        self._calls.close()

    def publish(self):
        aptrepo.publish(self.archive, self.keys["archive"])
        aptrepo.publish(self.mirror, self.keys["mirror"])

    def sh(self, script, check=True):
        return self.machine.enter("/bin/sh", stdin=script, check=check, timeout=180).stdout

    def do(self, code, **given):
        """Evaluate code beside the rooms `packages` and `repositories`; `said` takes progress."""
        return self._calls.ask({**given, "code": code})

    def value(self, code, **given):
        """The same where no error is looked for."""
        answer = self.do(code, **given)
        assert not answer["error"], answer["error"]
        return answer["value"]

    def error(self, code, **given):
        """The same where one is; it must be a single line."""
        answer = self.do(code, **given)
        assert answer["error"], answer["value"]
        assert "\n" not in answer["error"]
        return answer

    def have(self):
        """The packages of the test that are installed, with versions."""
        form = "${Package} ${db:Status-Status} ${Version}\n"
        shown = self.sh(f"dpkg-query -W -f '{form}' 'gpuci-*'").splitlines()
        rows = (line.split() for line in shown)
        return {name: rest[0] for name, status, *rest in rows if status == "installed"}

    def holds(self):
        return set(self.sh("apt-mark showhold").split())

    def record(self):
        return json.loads(self.sh("cat /var/lib/gpu-ci/packages.json"))

    def reset(self):
        left = self.sh(RESET).splitlines()
        assert [line for line in left if line.endswith(" installed")] == [
            "gpuci-before install installed"
        ], left


@contextlib.contextmanager
def apt_machine(fill):
    """Have one; `fill` puts packages into its two repositories."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as base:
        folder = pathlib.Path(base, "repositories")
        folder.mkdir()
        pathlib.Path(base).chmod(0o755)
        park = Park(pathlib.Path(base, "park"))
        binds = {"/srv/repo": ROOT, "/srv/packages": SITE_PACKAGES, "/srv/test": folder}
        try:
            machine = park.up("apt", binds_ro=binds)
            with contextlib.closing(AptMachine(machine, folder)) as made:
                fill(made)
                made.publish()
                made.sh(PREPARE)
                yield made
        finally:
            park.destroy()
