# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""README's two commands in a root that holds what debootstrap puts there, make, and this tree.

apt's sources, pip's configuration and certificates are this machine's own. The root has its own
mounts and processes, and all of them end with the test; network and cgroups are this machine's.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE = "srv/gpu-ci-worker"
SETTINGS = (
    *("etc/apt/apt.conf.d", "etc/apt/auth.conf.d", "etc/apt/keyrings", "etc/apt/sources.list"),
    *("etc/apt/sources.list.d", "etc/apt/trusted.gpg.d", "etc/hosts", "etc/pip.conf"),
    *("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt", "usr/local/share/ca-certificates"),
)
# Of this machine's environment: where packages come from, and whom to trust.
VARIABLES = re.compile(r"PIP_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|REQUESTS_CA_BUNDLE")
MINUTES = 90
ENTER = """
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs run
pivot_root . mnt
exec /usr/sbin/chroot . /bin/sh -ec "umount -l /mnt; cd /srv/gpu-ci-worker; $2"
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root"),
    pytest.mark.skipif(not shutil.which("debootstrap", path="/usr/sbin"), reason="no debootstrap"),
]
if "GPUCI_SOAK" not in os.environ:
    pytest.skip("`make soak` runs it", allow_module_level=True)
HERE = platform.freedesktop_os_release()
if HERE["ID"] != "debian":
    pytest.skip("apt's sources are no Debian's here", allow_module_level=True)


def mirror() -> str:
    """Where this machine's apt gets this release from."""
    shown = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", shown, "Created-By: Packages"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    wanted = f" {HERE['VERSION_CODENAME']} main"
    return next(line.split()[0] for line in done.stdout.splitlines() if line.endswith(wanted))


def copy_settings(root: pathlib.Path, release: str) -> None:
    """This machine's settings, its sources for another release."""
    for name in SETTINGS:
        source, target = pathlib.Path("/", name), root / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for path in (*root.glob("etc/apt/sources.list"), *root.glob("etc/apt/sources.list.d/*")):
        path.write_text(path.read_text().replace(HERE["VERSION_CODENAME"], release))


def copy_tree(target: pathlib.Path) -> None:
    """What git would commit of this tree, as a fresh clone has it."""
    command = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


@pytest.fixture
def fresh(request):
    """A function that runs shell in the root of this release, and shows what it says."""
    release = request.param
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-fresh-") as folder:
        root = pathlib.Path(folder, "root")
        packages = "--include=make,ca-certificates"
        strap = ["/usr/sbin/debootstrap", "--variant=minbase", packages, release, root, mirror()]
        subprocess.run(strap, check=True, stdout=sys.stderr, timeout=1800)
        copy_settings(root, release)
        copy_tree(root / TREE)
        env = {name: text for name, text in os.environ.items() if VARIABLES.fullmatch(name)}
        env |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}

        def run(script: str) -> str:
            command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
            done = subprocess.run(
                [*command, "sh", "-ec", ENTER, "sh", root, f"{script}"],
                env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=MINUTES * 60,
            )  # fmt: skip
            print(done.stdout)
            assert done.returncode == 0, done.stdout[-3000:]
            return done.stdout

        yield run


@pytest.mark.parametrize("fresh", ["bookworm"], indirect=True)
def test_both_commands_work_in_a_root_with_nothing_else(fresh):
    said = fresh("make lab; ./lab destroy")
    assert "the lab is up: " in said
    said = fresh("make test")
    assert re.search(r"\d+ passed", said)
    assert "failed" not in said.splitlines()[-1]


@pytest.mark.parametrize("fresh", ["trixie"], indirect=True)
def test_the_unit_tests_pass_on_the_next_debian(fresh):
    said = fresh("scripts/setup test; .venv/bin/python -V; .venv/bin/pytest -q tests/unit")
    assert "Python 3.13" in said
    assert re.search(r"\d+ passed", said)
