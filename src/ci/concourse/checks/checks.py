# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Concourse's checks, in the order of their results."""

import typing

from ci.concourse.checks import launcher, worker

CHECKS: typing.Final = (launcher.CHECK, *worker.CHECKS)
