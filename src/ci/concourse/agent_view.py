# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the agent needs to know of Concourse."""

import typing

from ci.concourse import release
from ci.concourse.worker import launcher, worker
from gpu_agent.runtime.settings import TaskFolders
from plan.agent_view import AgentView

# The folders in a step's container (8.2.5 atc/engine/step_factory.go:80-184).
_TASKS: typing.Final = TaskFolders("/tmp/build/", ("get", "put", "run"))  # noqa: S108


def make(application: str, *, has_web: bool) -> AgentView:
    """Return what the agent needs to know of the Concourse on this unit.

    Args:
        application: this unit's, for commands in remedies.
        has_web: whether Concourse's web is to run on this unit; it alone knows names of jobs.
    """
    return AgentView(
        runc=str(release.CURRENT / "bin/runc"),
        # A release counts as unpacked as long as the charm's note is beside it.
        runc_remedy=f"`sudo rm {release.CURRENT}/.release.json`; the charm unpacks Concourse "
        "again at its next event, within 5 minutes. If no release was unpacked: see juju status, "
        f"or juju attach-resource {application} concourse=<release tarball>",
        service=worker.SERVICE,
        tasks=_TASKS,
        programs=(str(launcher.PATH),),
        job_names=("-S", "-m", "ci.concourse.api.build_info_program") if has_web else (),
        checks=("-m", "ci.concourse.checks"),
        disks=(str(worker.WORK_DIR),),
        has_containerd=True,
    )
