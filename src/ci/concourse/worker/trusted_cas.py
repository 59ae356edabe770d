# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The CAs that Concourse's checks, gets and puts trust: the machine's, and the operator's besides.

Concourse puts a folder of the worker in the place of /etc/ssl/certs in those containers, never in
a task's (95872ce1a atc/worker/gardenruntime/worker.go, CertsBindMount). It copies that folder once
and knows the copy by the folder's path (atc/db/worker_resource_certs.go), so that other content
needs another path.
"""

import hashlib
import pathlib
import typing

from ci.concourse import service
from machine import files

_FOLDER: typing.Final = service.CONFIG / "certs"
# Where Debian and Ubuntu have all CAs in one file, and Go, OpenSSL and curl look for it.
_NAME: typing.Final = "ca-certificates.crt"
_MACHINES: typing.Final = pathlib.Path("/etc/ssl/certs", _NAME)


def ensure(
    pem: str,
    had: str = "",
    folder: pathlib.Path = _FOLDER,
    machines: pathlib.Path = _MACHINES,
) -> str:
    """Have the folder for Concourse with the machine's CAs and these. Return its path.

    Args:
        pem: the operator's certificates; empty: no folder is made, and the answer is empty.
        had: the worker's last path, which it may read until it is restarted.
        folder: where there is one folder for each content.
        machines: the file of the machine's CAs.
    """
    kept, name = {pathlib.PurePath(had).name}, ""
    if pem:
        content = f"{files.read_text(machines) or ''}{pem}"
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        for one in (folder.parent, folder, folder / name):
            files.ensure_directory(one)
        files.ensure_file(folder / name / _NAME, content)
        kept.add(name)
    for other in files.entries(folder):
        if other.name not in kept:
            files.ensure_absent(other)
    files.remove_if_empty(folder)
    return str(folder / name) if name else ""


def remove(folder: pathlib.Path = _FOLDER) -> bool:
    """Take the folder away. Return True if it was there."""
    return files.ensure_absent(folder)
