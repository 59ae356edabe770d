# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A booted machine with this tree, the packages of this Python and a Concourse to install.

That is the real one where GPUCI_CONCOURSE_TARBALL names its tarball, else the stand-in.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile

import ops
import pytest

from tests import once
from tests.fakes.concourse.build import build
from tests.lab.park import Park

ROOT = pathlib.Path(__file__).parents[2]
REAL = os.environ.get("GPUCI_CONCOURSE_TARBALL")
_NEEDED = ("systemd-nspawn", "psql", "iptables", "containerd", "runc")
_PLACES = "/usr/sbin:/usr/bin:/sbin:/bin"
_MISSING = [name for name in _NEEDED if not shutil.which(name, path=_PLACES)]

NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="machines need root"),
    pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}"),
    # A machine's keeper is meant to outlive who started it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
TARBALL = "/srv/release/c.tgz"
# The tree may lie in /root, which a machine does not see.
PYTHONPATH = "/srv/repo/src:/srv/repo/lib:/srv/repo:/srv/packages"


@contextlib.contextmanager
def concourse_machine(name):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as folder:
        release = pathlib.Path(folder, "release")
        release.mkdir(mode=0o755)
        if REAL:
            shutil.copy(REAL, release / "c.tgz")
        else:
            once.put("concourse.tgz", build, release / "c.tgz")
        packages = pathlib.Path(ops.__file__).parents[1]
        binds = {"/srv/repo": ROOT, "/srv/release": release, "/srv/packages": packages}
        park = Park(pathlib.Path(folder, "park"))
        try:
            yield park.up(name, binds=["/var/lib/concourse"], binds_ro=binds)
        finally:
            park.destroy()
