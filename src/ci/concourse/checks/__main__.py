# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""`python3 -m ci.concourse.checks`: check what only Concourse has; write the results as JSON.

The self-test starts it (gpu_selftest.quick.ci_checks), as root and also at boot.
"""

import collections.abc
import functools
import pathlib
import sys
import typing

from ci.concourse.checks import launcher, worker
from ci.concourse.worker import volumes
from gpu_selftest import settings
from gpu_selftest.quick import ci_checks
from gpu_selftest.quick.ci_checks import Answer

# How often an image is on the disk if volumes are copies.
_COPIES: typing.Final = 3


def answer(
    installed: collections.abc.Mapping[str, str], root: pathlib.Path = pathlib.Path("/")
) -> Answer:
    """Make the checks.

    Args:
        installed: what each installed file of the GPU runtime must be, by absolute path.
        root: where the machine's files are.
    """
    driver = worker.volume_driver(root)
    copies = _COPIES if driver == volumes.NAIVE else 1
    first = launcher.CHECK, functools.partial(launcher.check, installed, root)
    return Answer(ci_checks.run((first, *worker.checks(driver, root))), copies)


def main() -> int:
    """Write the answer. Return the exit status: 1 if the self-test's settings cannot be read."""
    kept = settings.read()
    if kept is None:
        sys.stderr.write(f"{settings.PATH} is missing or damaged\n")
        return 1
    sys.stdout.write(ci_checks.as_json(answer(kept.files)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
