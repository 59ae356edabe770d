# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the agent needs to know of the CI system on this unit: values only."""

import dataclasses

from gpu_agent.runtime.settings import TaskFolders


@dataclasses.dataclass(frozen=True)
class AgentView:
    """What the agent needs to know of the CI system on this unit; the default is none.

    A program is named by the arguments of the charm's Python, which finds the charm's modules.

    Attributes:
        runc: absolute path of the runc that starts tasks; empty: that of the machine.
        runc_remedy: what to do if it is missing.
        service: the systemd unit that takes jobs; at boot it waits for the self-test. Or empty.
        tasks: how a task's container is known.
        programs: absolute paths of programs that the CI system has beside the GPU runtime's. They
            are installed before the self-test, which is due again if one changes.
        job_names: the program that tells which job a container belongs to; empty: none does.
        log_reader: the program of runners that reads what their jobs write; empty: it is the main
            process of a runner's unit.
        figures: the file with its figures for metrics (gpu_agent.model.ci_figures); empty: none.
        checks: the program whose results join the self-test; empty: there is none.
        disks: folders that need space for jobs.
        has_containerd: whether it has a containerd, which needs the socket of the distribution's.
    """

    runc: str = ""
    runc_remedy: str = "install the package runc"
    service: str = ""
    tasks: TaskFolders = TaskFolders()
    programs: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()
    log_reader: str = ""
    figures: str = ""
    checks: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    has_containerd: bool = False
