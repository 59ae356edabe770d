# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run inside a machine: the charm's hooks there, with all its rooms, of one unit or more.

Juju's answers are played by ops.testing. On stdin a JSON list of steps, each a hook or an action
of a unit with changed options, or a shell script; on stdout a list of what came of them.
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

from ops import testing

import charm
from ci.concourse.worker import worker

REPO = pathlib.Path("/srv/repo")
AGENTS = pathlib.Path("/var/lib/juju/agents")
MODEL = testing.Model(name="ci", uuid="3c9b4ee5-2f04-4a3a-8f0e-6a3c0d0f1a11")


class Unit:
    """A unit, whose charm lies where Juju puts it, and what Juju knows of it."""

    def __init__(self, name, tarball):
        app, number = name.split("/")
        root = AGENTS / f"unit-{app}-{number}/charm"
        root.mkdir(parents=True)
        for file in ("metadata.yaml", "config.yaml", "actions.yaml"):
            shutil.copy(REPO / file, root)
        self.context = testing.Context(
            charm.GpuCiWorkerCharm, charm_root=root, app_name=app, unit_id=int(number)
        )
        resources = [("concourse", tarball), ("selftest-wheels", "/dev/null")]
        self.state = testing.State(
            model=MODEL,
            leader=True,
            # What ops.testing says of the network is true of no machine.
            config={"web-advertise-address": "ci.example.com"},
            relations=[testing.PeerRelation("peers")],
            resources=[testing.Resource(name=name, path=path) for name, path in resources],
        )

    def run(self, step):
        config = {**self.state.config, **step.get("config", {})}
        before = dataclasses.replace(self.state, config=config)
        on = self.context.on
        action = step.get("action")
        event = on.action(action, params=step["params"]) if action else getattr(on, step["hook"])()
        try:
            self.state = self.context.run(event, before)
        except testing.ActionFailed as failed:
            return {"failed": failed.message}
        said = {"status": self.state.unit_status.name, "text": self.state.unit_status.message}
        return {**said, "results": self.context.action_results} if action else said


def main():
    # The stand-in's worker would take all the time for builds that it has not got.
    worker.FAREWELL_SECONDS = 3
    asked = json.load(sys.stdin)
    units, answers = {}, []
    for step in asked["steps"]:
        if "sh" in step:
            done = subprocess.run(
                ["/bin/sh", "-c", step["sh"]], check=False, capture_output=True, text=True
            )
            answers.append(done.stdout)
            continue
        name = step["unit"]
        if name not in units:
            units[name] = Unit(name, asked["tarball"])
        answers.append(units[name].run(step))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
