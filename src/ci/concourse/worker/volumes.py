# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How Concourse keeps volumes here: layered by overlay mounts or, where those can't be, copied.

Left to itself Concourse takes overlay on every kernel since 4.0, tried or not (95872ce1a
worker/baggageclaim/baggageclaimcmd/driver_linux.go), and with it the option metacopy, which takes
rights over the host (Linux fs/overlayfs/params.c). So in an unprivileged container it can make
volumes for outputs, and none over another, as each image, get and check needs.

Its btrfs driver is not used: such a container can create a subvolume but not delete it (EPERM).
Copies on btrfs or XFS share their blocks, from GNU cp 9.0 on.
"""

import errno
import json
import pathlib
import sys
import typing

from machine import exhaustion as scarcity
from machine import files, process

OVERLAY: typing.Final = "overlay"
NAIVE: typing.Final = "naive"

_TRIAL: typing.Final = pathlib.Path(__file__).with_name("overlay_probe.py")
_SECONDS: typing.Final = 15.0  # it takes a tenth of one
# What says that overlay is not for this place: no right, an overlay below it, no such file system.
_REFUSALS: typing.Final = (
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP),
)


class VolumeError(Exception):
    """No volume could be made; the text says what failed.

    Attributes:
        refused: the kernel does not have this driver here; otherwise it may be over by itself.
        starved: the machine had no time or room for it, which says nothing of the driver.
    """

    def __init__(self, text: str, *, refused: bool = False, starved: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        self.starved = starved


def prove(driver: str, work_dir: pathlib.Path) -> None:
    """Make, layer, change and remove a volume with this driver, beside those of Concourse.

    Raises:
        VolumeError: that does not work.
    """
    try:
        files.ensure_directory(work_dir)
        program = [sys.executable, "-I", "-S", str(_TRIAL), driver, str(work_dir)]
        argv = ["/usr/bin/unshare", "--mount", "--propagation", "private", "--", *program]
        done = process.run(argv, timeout=_SECONDS, check=False, told=False)
    except OSError as error:
        raise VolumeError(str(error), starved=scarcity.is_told_by(error)) from error
    except process.CommandError as error:
        raise VolumeError(str(error), starved=error.starved) from error
    if not done.returncode:
        return
    try:
        said: dict[str, typing.Any] = json.loads(done.stdout)
    except ValueError as error:
        failure = process.CommandError(argv, done.returncode, done.stderr)
        raise VolumeError(str(failure), starved=failure.starved) from error
    raise VolumeError(
        f"{driver}: {said['text']}",
        refused=said["errno"] in _REFUSALS,
        starved=scarcity.is_told_by(str(said["text"])),
    )


def choose(had: str, work_dir: pathlib.Path) -> str:
    """The driver that the worker is to have: overlay where it works.

    A driver cannot read the volumes of another, so the worker keeps its driver as long as that
    works. An unclear probe changes nothing, and a worker that copies keeps copying.

    Args:
        had: the driver that it has volumes of; empty if none.
        work_dir: the worker's.
    """
    if had == NAIVE:
        return NAIVE
    try:
        prove(OVERLAY, work_dir)
    except VolumeError as error:
        return NAIVE if error.refused else OVERLAY
    return OVERLAY
