# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make the stand-in's tarball, in the shape of a Concourse release.

The layout is the one of https://github.com/concourse/concourse releases: ``concourse/bin``,
``concourse/fly-assets``, ``concourse/resource-types``. ``concourse/standin`` is ours: the Python
code behind ``bin/concourse`` and the packages that it needs, copied from this interpreter.
"""

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SYSTEM_PYTHON = "/usr/bin/python3"
PACKAGES = ("asyncssh", "pg8000", "PyYAML")
CONTAINER_TOOLS = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
}
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What they print of a step's world is in the log of its build. They read no request and tell no
# version: nothing here asks for one.
MOCK_SCRIPTS = {
    "check": "#!/bin/sh\n",
    "in": """#!/bin/sh
for node in /dev/nvidia*; do [ ! -e "$node" ] || echo "saw $node"; done
env | grep -E '^(NVIDIA|GPU|CUDA)_' | sort | sed 's/^/saw /'
certs=/etc/ssl/certs/ca-certificates.crt
[ ! -e $certs ] || tail -n 2 $certs | sed 's/^/saw certificate /'
echo 'mock content' >"$1/content"
""",
    "out": """#!/bin/sh
for node in /dev/nvidia*; do [ ! -e "$node" ] || echo "saw $node"; done
""",
}


class BuildError(Exception):
    """The stand-in cannot be made on this machine; the text says what to install."""


def build(out: Path) -> Path:
    """Write the stand-in's release tarball to the file ``out`` and return it.

    Takes a few seconds; the same machine gives the same bytes each time.

    Raises:
        BuildError: a program or package is missing, or /usr/bin/python3 is of another minor
            version than this interpreter, whose compiled packages are copied.
    """
    with tempfile.TemporaryDirectory(prefix="concourse-standin-") as scratch:
        release = Path(scratch, "concourse")
        _fill_bin(release / "bin")
        _fill_code(release / "standin")
        _write_targz(release / "fly-assets" / "fly-linux-amd64.tgz", HERE / "fly.py", "fly")
        _fill_mock_resource(release / "resource-types" / "mock", Path(scratch, "rootfs"))
        _write_targz(out, release, "concourse")
    return out


def _fill_bin(folder: Path) -> None:
    folder.mkdir(parents=True)
    for tool, package in CONTAINER_TOOLS.items():
        shutil.copy(_program(tool, package), folder / tool)
    compiler = _program("gcc", "gcc libc6-dev")
    _run(compiler, "-static", "-Os", "-s", "-o", str(folder / "init"), str(HERE / "init.c"))
    shutil.copy(HERE / "concourse.py", folder / "concourse")
    (folder / "concourse").chmod(0o755)


def _program(name: str, package: str) -> str:
    found = shutil.which(name, path=TOOL_PATH)
    if found is None:
        raise BuildError(f"{name} is not installed: apt-get install {package}")
    return found


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise BuildError(f"{argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _fill_code(folder: Path) -> None:
    version = "{}.{}".format(*sys.version_info)
    system = _run(SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    if system != version:
        raise BuildError(
            f"{SYSTEM_PYTHON} is Python {system}, but this is Python {version}: make the virtual "
            f"environment with {SYSTEM_PYTHON} -m venv"
        )
    shutil.copytree(HERE / "concourse_standin", folder / "concourse_standin", ignore=_no_cache)
    for name in sorted(_with_requirements(PACKAGES)):
        for file in metadata.distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    # Hash-based and unchecked: an unpacked file's time of change says nothing, and a service that
    # may not write beside its code would compile everything again at each start.
    compiler = ("-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    _run(SYSTEM_PYTHON, "-I", *compiler, "-s", str(folder), str(folder))


def _no_cache(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def _with_requirements(names: tuple[str, ...]) -> set[str]:
    """The named distributions and all that they need on this interpreter, extras left out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError as error:
            if name not in names:  # bound to another platform or Python by its marker
                continue
            raise BuildError(f"Python package {name} is missing: pip install {name}") from error
        found.add(name)
        waiting += [re.split(r"[^\w.-]", line)[0] for line in requirements if "extra" not in line]
    return found


def _fill_mock_resource(folder: Path, rootfs: Path) -> None:
    busybox = _program("busybox", "busybox-static")
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "opt/resource"):
        (rootfs / name).mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin" / "busybox")
    for applet in _run(busybox, "--list").split():
        if applet != "busybox":
            (rootfs / "bin" / applet).symlink_to("busybox")
    (rootfs / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for name, script in MOCK_SCRIPTS.items():
        (rootfs / "opt" / "resource" / name).write_text(script)
        (rootfs / "opt" / "resource" / name).chmod(0o755)
    _write_targz(folder / "rootfs.tgz", rootfs, ".")
    description = {
        "type": "mock",
        "version": "1.0.0",
        "privileged": False,
        "unique_version_history": False,
    }
    (folder / "resource_metadata.json").write_text(json.dumps(description))


def _write_targz(out: Path, source: Path, name: str) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)

    def same_each_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = "root"
        program = member.mode & 0o100 or source.is_file()  # fly, which lies here as fly.py
        member.mode = 0o755 if member.isdir() or program else 0o644
        return member

    with out.open("wb") as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
        buffered = io.BufferedWriter(packed, 1 << 20)  # type: ignore[type-var]
        with tarfile.open(fileobj=buffered, mode="w") as archive:
            archive.add(source, arcname=name, filter=same_each_time)
        buffered.flush()


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
