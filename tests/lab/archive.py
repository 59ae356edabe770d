# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The lab's own package archives, signed: the distribution's, which has NVIDIA's driver, and a
mirror of NVIDIA's with the container toolkit. Built once for a lab, in its shared directory."""

import os
import pathlib
import platform
import shutil
import subprocess
from collections.abc import Sequence

from tests.fakes import aptrepo, nvidiapackages
from tests.fakes.nvidiapackages import DRIVERS, TOOLKITS, Package
from tests.lab.errors import LabError
from tests.lab.juju.agent import SHARED

# Packages that a bare machine does not have; dpkg's globs.
PACKAGES = ("libnvidia-*", "nvidia-*", "linux-modules-nvidia-*")

FOLDER = "archive"
ROOT = f"{SHARED}/{FOLDER}"
DISTRIBUTION = f"{ROOT}/distribution"
MIRROR = f"{ROOT}/mirror"
# The address at which a bare machine serves the mirror to itself.
MIRROR_PORT = 8099
MIRROR_URL = f"http://127.0.0.1:{MIRROR_PORT}"
PUBLIC_KEY = f"{MIRROR}/gpgkey"
_REPOSITORY = "mirror/stable/deb"

# A machine of metal has a kernel's folders, and its distribution's archive as only package source.
MACHINE = f"""\
set -eu
kernel={platform.release()}
mkdir -p /boot "/lib/modules/$kernel"
touch "/boot/vmlinuz-$kernel"
cd "/lib/modules/$kernel"
if [ ! -e modules.dep ]; then
    touch modules.order modules.builtin modules.builtin.modinfo
    /sbin/depmod "$kernel"
fi
cd /etc/apt
rm -rf sources.list sources.list.d/* preferences.d/* /var/lib/apt/lists/*
mkdir -p keyrings sources.list.d
cp {PUBLIC_KEY} keyrings/lab.asc
printf '%s\\n' 'Types: deb' 'URIs: file:{DISTRIBUTION}' 'Suites: /' \
    'Signed-By: /etc/apt/keyrings/lab.asc' >sources.list.d/lab.sources
echo 'Acquire::http::Proxy::127.0.0.1 "DIRECT";' >apt.conf.d/99lab
cat >/etc/systemd/system/lab-mirror.service <<END
[Unit]
Description=A mirror of NVIDIA's package repository, as a site may have one

[Service]
ExecStart=$(command -v busybox) httpd -f -p 127.0.0.1:{MIRROR_PORT} -h {MIRROR}

[Install]
WantedBy=multi-user.target
END
systemctl --quiet enable --now lab-mirror.service
"""


def prepare(
    shared: pathlib.Path,
    runtime: Sequence[pathlib.Path] = (),
    drivers: Sequence[str] = DRIVERS,
    key: aptrepo.Key | None = None,
) -> None:
    """Build both archives in the lab's shared directory, unless they exist.

    Args:
        shared: the lab's shared directory.
        runtime: the files of the real nvidia-container-runtime, for the newest toolkit; without
            them it contains the stand-in, like the older ones in any case.
        drivers: their versions.
        key: signs both; None: a key that is then thrown away, so that nothing can be added later.

    Raises:
        LabError: a program that this needs is missing or fails.
    """
    if (shared / FOLDER).exists():
        return
    new = shared / f"{FOLDER}.new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        signer = key or aptrepo.Key.make(new / "private")
        distribution, built = new / "distribution", new / "built"
        repository = new / _REPOSITORY / architecture()
        _fill(distribution, [nvidiapackages.ubuntu_drivers()])
        for version in drivers:
            _fill(distribution, nvidiapackages.driver(version, built / version))
        for version in TOOLKITS:
            _fill(repository, nvidiapackages.toolkit(version, runtime))
        for folder in (distribution, repository):
            aptrepo.publish(folder, signer)
        (new / "mirror/gpgkey").write_text(signer.public)
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        raise LabError(f"cannot build the lab's package archive: {error}") from error
    shutil.rmtree(new / "built")
    shutil.rmtree(new / "private", ignore_errors=True)
    os.replace(new, shared / FOLDER)


def publish(
    shared: pathlib.Path,
    key: aptrepo.Key,
    distribution: Sequence[Package] = (),
    mirror: Sequence[Package] = (),
) -> None:
    """Add packages to the archives of a lab that is up.

    Args:
        shared: the lab's shared directory.
        key: the one that `prepare` was given.
        distribution: for the distribution's archive.
        mirror: for the mirror of NVIDIA's.
    """
    repository = shared / FOLDER / _REPOSITORY / architecture()
    for folder, packages in (
        (shared / FOLDER / "distribution", distribution),
        (repository, mirror),
    ):
        if packages:
            _fill(folder, packages)
            aptrepo.publish(folder, key)


def obstacle() -> str:
    """Return why no machine of the lab can be bare on this host; or empty."""
    show = ["/usr/bin/dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES]
    done = subprocess.run(show, capture_output=True, text=True, check=False, timeout=60)
    there = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("installed")]
    return f"this machine has {there[0]} itself" if there else ""


def options(shared: pathlib.Path) -> dict[str, str]:
    """Return the options with which the charm takes the toolkit from this mirror."""
    key = (shared / FOLDER / "mirror/gpgkey").read_text()
    return {"nvidia-toolkit-mirror": MIRROR_URL, "nvidia-toolkit-key": key}


def architecture() -> str:
    """Debian's name of this machine's."""
    show = ["/usr/bin/dpkg", "--print-architecture"]
    return subprocess.run(show, capture_output=True, text=True, check=True, timeout=60).stdout[:-1]


def _fill(folder: pathlib.Path, packages: Sequence[Package]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        aptrepo.package(
            folder, package.name, package.version, package.depends,
            files=package.files, scripts=package.scripts,
        )  # fmt: skip
