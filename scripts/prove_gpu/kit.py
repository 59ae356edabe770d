# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make the folder .prove-kit: the packages that `make prove-gpu` needs, for any Python from 3.10.

The wheels come from the package index, with the versions and hashes of requirements-agent.txt.
They are unpacked without their compiled parts: MarkupSafe, the only package with one, then uses
its own Python code.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

_TREE = pathlib.Path(__file__).resolve().parents[2]
_KIT = _TREE / ".prove-kit"
_LOCK = _TREE / "requirements-agent.txt"
_COMPILED = (".so", ".pyd", ".c", ".pyc")
_MOST = 16 << 20


def main() -> int:
    """Make the folder, unless it is of this lock."""
    lock = _LOCK.read_text(encoding="utf-8")
    stamp = _KIT / "lock.txt"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        print(f"prove-kit: {_KIT} is current")
        return 0
    with tempfile.TemporaryDirectory(dir=_TREE, prefix=".prove-kit.") as name:
        folder = pathlib.Path(name)
        argv = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-input", "--no-deps", "--require-hashes", "--only-binary=:all:",
            "--dest", str(folder / "wheels"), "--requirement", str(_LOCK),
        ]  # fmt: skip
        subprocess.run(argv, check=True, timeout=600)
        new = folder / "kit"
        for wheel in sorted((folder / "wheels").glob("*.whl")):
            _unpack(wheel, new)
        (new / "lock.txt").write_text(lock, encoding="utf-8")
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size > _MOST:
            raise SystemExit(f"prove-kit: {size >> 20} MiB are too many to carry along")
        if _KIT.exists():
            shutil.rmtree(_KIT)
        new.chmod(0o755)
        new.rename(_KIT)
    print(f"prove-kit: {_KIT} is ready, {size / (1 << 20):.1f} MiB")
    return 0


def _unpack(wheel: pathlib.Path, target: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            place = pathlib.PurePosixPath(member)
            if place.is_absolute() or ".." in place.parts:
                raise SystemExit(f"prove-kit: {wheel.name} has {member}")
            if not member.endswith(_COMPILED):
                archive.extract(member, target)


if __name__ == "__main__":
    sys.exit(main())
