# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Packages that depend, conflict, fail or take their time, for a machine of apt_machine."""

import os

from tests.fakes import aptrepo

# Name and dependencies. "before" is on the machine already.
PACKAGES = {
    "gpuci-tool": "gpuci-library, gpuci-before",
    "gpuci-library": "",
    "gpuci-before": "",
    "gpuci-other": "",
    "gpuci-theirs": "gpuci-library",
    "gpuci-extra": "",
}
# Fails, or takes its time, as long as a file says so.
SLOW = """
name=$DPKG_MAINTSCRIPT_PACKAGE-$DPKG_MAINTSCRIPT_NAME
while [ -e "/run/gpuci-slow-$name" ]; do sleep 0.1; done
"""
BAD = """
[ "$1" = configure ] || exit 0
[ ! -e /run/gpuci-bad ] || { echo "no module for this kernel" >&2; exit 3; }
"""
# By its name one that apt keeps for the running kernel.
MODULES = f"linux-modules-gpuci-{os.uname().release.replace('_', '-')}"
KIT = {"gpuci-kit": "1", "gpuci-kit-base": "1"}


def fill(host):
    for name, depends in PACKAGES.items():
        more = {"Recommends": "gpuci-extra"} if name == "gpuci-tool" else {}
        files = {"/usr/share/gpuci/tool": "1" * 99999} if name == "gpuci-tool" else {}
        aptrepo.package(host.archive, name, "1", depends, files=files, **more)
    for version in ("1", "2", "3"):
        exactly = f"gpuci-kit-base (= {version}), gpuci-common"
        aptrepo.package(
            host.archive, "gpuci-kit", version, exactly, files={"/etc/gpuci-kit": version}
        )
        aptrepo.package(host.archive, "gpuci-kit-base", version, scripts={"postinst": SLOW + BAD})
    for version in ("1", "2"):
        aptrepo.package(host.archive, "gpuci-common", version, scripts={"preinst": SLOW})
    aptrepo.package(host.archive, "gpuci-rival", "1", Conflicts="gpuci-other")
    aptrepo.package(host.archive, "gpuci-next", "1", Conflicts="gpuci-kit-base")
    aptrepo.package(host.archive, MODULES, "1")
    aptrepo.package(host.archive, "gpuci-broken", "1", "gpuci-nowhere (>= 2)")


def ensure(versions, owner="toolkit", **more):
    """The call as text, for AptMachine.do."""
    extra = "".join(f", {key}={value!r}" for key, value in more.items())
    return f"packages.ensure({owner!r}, {versions!r}, said.append{extra})"


def all_at(version):
    return dict.fromkeys(KIT, version)
