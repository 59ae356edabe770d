# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Signed repositories of packages, made by the real dpkg-deb and gpg; flat ones (suite `/`)."""

import dataclasses
import email.utils
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping

# As clients know it; the name says that nobody should take it for more.
OWNER = "gpu-ci-worker tests <tests@gpu-ci-worker.invalid>"


def _run(*argv: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    done = subprocess.run(
        argv, input=stdin, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{argv[0]}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of gpg that signs repositories.

    Attributes:
        home: gpg's own directory, with the secret half.
        public: the public half, ASCII-armoured.
        fingerprint: 40 hexadecimal digits.
        time: when gpg believes to be, such as `20200101T000000`; empty: now.
    """

    home: pathlib.Path
    public: str
    fingerprint: str
    time: str = ""

    @classmethod
    def make(cls, folder: pathlib.Path, *, time: str = "", expires: str = "never") -> "Key":
        """Make a new one in a directory, which is made too.

        Args:
            folder: where gpg keeps it.
            time: when it is made and used, such as `20200101T000000`; empty: now.
            expires: how long it is good for, such as `1d`.
        """
        folder.mkdir(mode=0o700, parents=True)
        key = cls(folder, "", "", time)
        key.gpg("--quick-generate-key", OWNER, "ed25519", "sign", expires)
        public = key.gpg("--armor", "--export")
        shown = key.gpg("--with-colons", "--list-keys")
        # Field 10 of the first such row: GnuPG doc/DETAILS, "Format of the colon listings".
        rows = (line.split(":") for line in shown.splitlines() if line.startswith("fp"))
        return dataclasses.replace(key, public=public, fingerprint=next(rows)[9])

    def clearsign(self, text: str) -> str:
        """The text and its signature as one, as InRelease is."""
        return self.gpg("--digest-algo", "SHA512", "--clearsign", stdin=text)

    def gpg(self, *arguments: str, stdin: str = "") -> str:
        """What gpg says with this key's directory. Its agent is ended."""
        env = {**os.environ, "GNUPGHOME": str(self.home), "LC_ALL": "C"}
        past = ["--faked-system-time", f"{self.time}!"] if self.time else []
        quiet = ["--batch", "--yes", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
        try:
            return _run("gpg", *quiet, "--passphrase", "", *past, *arguments, env=env, stdin=stdin)
        finally:
            _run("gpgconf", "--kill", "all", env=env)


def package(
    folder: pathlib.Path,
    name: str,
    version: str,
    depends: str = "",
    files: Mapping[str, bytes | str | pathlib.Path] | None = None,
    scripts: Mapping[str, str] | None = None,
    **fields: str,
) -> pathlib.Path:
    """Make a package in a repository's folder, and return its file.

    Args:
        folder: made when missing.
        name: of the package.
        version: such as `1.20.0-1`.
        depends: as in its control file.
        files: what it brings, by absolute path. Scripts, programs and what is executable in a Path
            can be executed; what lies in /etc is a conffile.
        scripts: text of `postinst` and the like.
        fields: more of the control file, such as `Recommends`; `_` stands for a dash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    control = {
        "Package": name,
        "Version": version,
        "Architecture": "all",
        "Maintainer": OWNER,
        "Depends": depends,
        **{field.replace("_", "-"): value for field, value in fields.items()},
        "Description": f"{name}, made by a test",
    }
    deb = folder / f"{name}_{version.replace(':', '.')}_{control['Architecture']}.deb"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        root, about = pathlib.Path(made, "root"), pathlib.Path(made, "root/DEBIAN")
        about.mkdir(parents=True, mode=0o755)
        root.chmod(0o755)
        lines = (f"{field}: {value}\n" for field, value in control.items() if value)
        (about / "control").write_text("".join(lines))
        for path, content in (files or {}).items():
            _place(root / path.lstrip("/"), content)
        if conffiles := [path for path in files or {} if path.startswith("/etc/")]:
            (about / "conffiles").write_text("".join(f"{path}\n" for path in conffiles))
        for script, text in (scripts or {}).items():
            (about / script).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
            (about / script).chmod(0o755)
        _run("dpkg-deb", "-Znone", "--root-owner-group", "--build", str(root), str(deb))
    return deb


def publish(folder: pathlib.Path, key: Key | None, **fields: str) -> None:
    """Make the folder's packages a repository: Packages, Release and InRelease.

    Args:
        folder: with the packages; made when missing.
        key: signs it; None: nobody does.
        fields: more of the Release file, such as `Origin` or `Valid_Until`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(map(_stanza, sorted(folder.glob("*.deb"))))
    replace(folder / "Packages", text.encode())
    when = email.utils.formatdate(usegmt=True).replace("GMT", "UTC")
    about = {"Origin": "tests", "Label": "tests", "Suite": "stable", "Date": when, **fields}
    lines = (f"{field.replace('_', '-')}: {value}\n" for field, value in about.items())
    digest = hashlib.sha256(text.encode()).hexdigest()
    release = f"{''.join(lines)}SHA256:\n {digest} {len(text.encode())} Packages\n"
    replace(folder / "Release", release.encode())
    signed = folder / "InRelease"
    if key:
        replace(signed, key.clearsign(release).encode())
    else:
        signed.unlink(missing_ok=True)


def replace(path: pathlib.Path, content: bytes) -> None:
    """Write a file anew, later by a second at least: web servers tell by whole seconds."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    if path.exists():
        later = max(time.time(), path.stat().st_mtime + 1)
        os.utime(new, (later, later))
    new.replace(path)


def _place(path: pathlib.Path, content: bytes | str | pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pathlib.Path):
        shutil.copy(content, path)
        mode = 0o755 if os.access(content, os.X_OK) else 0o644
    else:
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
        mode = 0o755 if data.startswith((b"#!", b"\x7fELF")) else 0o644
    path.chmod(mode)


def _stanza(deb: pathlib.Path) -> str:
    """What Packages says of one package."""
    control = _run("dpkg-deb", "--field", str(deb)).strip()
    digest = hashlib.sha256()
    with deb.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return (
        f"{control}\nFilename: ./{deb.name}\nSize: {deb.stat().st_size}\n"
        f"SHA256: {digest.hexdigest()}\n\n"
    )
