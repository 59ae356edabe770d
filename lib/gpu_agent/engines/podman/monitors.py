# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Find containers of podman by their monitors."""

import os
from pathlib import Path
from typing import Final

from gpu_runtime import proc

# podman's monitor of a container, of any user and with any store: the package's program, which is
# owned by root, with the runtime after this option (conmon(8)).
_MONITORS: Final = "proc/[0-9]*/cmdline"
_MONITOR: Final = "conmon"
_RUNTIME: Final = ("-r", "--runtime")


def is_in_use(runtime: str) -> bool:
    """Whether a container lives that podman started with this runtime.

    Raises:
        OSError: /proc cannot be read.
    """
    return any(_is_monitor(path.parent, runtime) for path in Path("/").glob(_MONITORS))


def _is_monitor(process: Path, runtime: str) -> bool:
    """Whether a process is podman's monitor of a container that this machine's runtime started.

    Raises:
        OSError: /proc cannot be read.
    """
    words = proc.read(str(process / "cmdline")).split("\0")
    told = [words[place - 1] for place, word in enumerate(words) if word == runtime and place]
    if not any(word in _RUNTIME for word in told):
        return False
    program = proc.link(str(process / "exe")).removesuffix(" (deleted)")
    found = proc.look(str(process / "exe"))
    if Path(program).name != _MONITOR or found is None or found.st_uid != 0:
        return False
    # In a system container on this machine that path is another runtime.
    own = proc.look(str(Path(runtime).parent))
    its = proc.look(f"{process}/root{Path(runtime).parent}")
    return own is not None and its is not None and os.path.samestat(own, its)
