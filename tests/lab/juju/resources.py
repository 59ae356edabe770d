# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The files that applications are given as resources, where their machines see them."""

import os
import pathlib
import shutil
from collections.abc import Mapping

from tests.lab.errors import WrongUse
from tests.lab.juju.agent import SHARED
from tests.lab.juju.charmfile import CharmMeta
from tests.lab.juju.store import Store

# Larger resources are hard links, so that a release of 1 GB is not copied for each lab.
COPY_LIMIT = 64 << 20


def check_files(meta: CharmMeta, given: Mapping[str, pathlib.Path]) -> None:
    """Refuse what the charm has no use for.

    Raises:
        WrongUse: no such resource or file.
    """
    for name, path in given.items():
        if name not in meta.resources:
            have = ", ".join(meta.resources) or "none"
            raise WrongUse(f"charm {meta.name} has no resource {name!r}: have {have}")
        if not path.is_file():
            raise WrongUse(f"resource {name!r}: {path} is not a file")


def attach_file(
    store: Store,
    shared: pathlib.Path,
    app: str,
    name: str,
    filename: str,
    source: pathlib.Path | None,
) -> None:
    """Give an application a resource's file, or an empty one.

    Args:
        store: the model.
        shared: the host's directory that machines see as SHARED.
        app, name: the application, and its resource.
        filename: as the charm declares it.
        source: the file; None for an empty one.
    """
    target = shared / "resources" / app / name / pathlib.Path(filename).name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if source is None:
        target.touch()
    elif source.stat().st_size < COPY_LIMIT:
        shutil.copyfile(source, target)
    else:
        try:
            os.link(source, target)
        except OSError:  # Another file system.
            shutil.copyfile(source, target)
    path = f"{SHARED}/resources/{app}/{name}/{target.name}"
    store.do("INSERT OR REPLACE INTO resource VALUES (?, ?, ?)", app, name, path)
