# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A runner of GitHub begins in its unit, in a copy of a program that it cannot change."""

import json

import pytest

from tests.functional import selftest_machine

pytestmark = selftest_machine.NEEDS

# In place of GitHub's: it writes into its folder and says what GitHub's says. Then its job looks
# around. GitHub's program removes the variable itself.
PROGRAM = r"""#!/bin/sh
cd "$(dirname "$0")"
printf %s "$ACTIONS_RUNNER_INPUT_JITCONFIG" > .runner
echo "$(date -u '+%Y-%m-%d %H:%M:%SZ'): Listening for Jobs"
until [ -e job ]; do sleep 0.1; done
unset ACTIONS_RUNNER_INPUT_JITCONFIG
touch /opt/release/written 2>/dev/null
cat /proc/[0-9]*/cmdline > arguments
env > environment
echo "$(date -u '+%Y-%m-%d %H:%M:%SZ'): Running job: test"
sleep infinity
"""
# As the keeper of runners does it.
BEGIN = """
import json, pathlib
from ci.runners.github import GitHub
from ci.runners.service import Place
from ci.runners.units import Allowed, Units
from machine import polling

service, unit = GitHub("https://github.com", "acme", "token"), Units().unit("ab12")
place = Place("host-0-ab12", (), str(unit.files), str(unit.home), {})
command = service.command("/opt/release/run.sh", place)
unit.begin(command, {"jitconfig": "s3cr3t" * 1000}, {"GIVEN": "1"}, Allowed([]))
copy, found = unit.home / "runner", {}
polling.until(lambda: "Listening" in unit.log(), 30)
found["before"] = service.has_job(unit.log())
(copy / "job").touch()
polling.until(lambda: service.has_job(unit.log()), 30)
found |= {name: (copy / name).read_text() for name in (".runner", "arguments", "environment")}
unit.ask_to_end()
polling.until(lambda: not Units().names(), 30)
unit.clear()
found["left"] = Units().left()
print(json.dumps(found))
"""


# In place of the program that GitHub's starts for its job: it reads a step's two pipes.
WORKER = r"""#!/usr/bin/python3
import pathlib, subprocess, sys
argv = ["/bin/sh", "-c", "(sleep 1000; true); true"]
step = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
here = pathlib.Path(__file__).parent
(here / "began").touch()
for line in step.stderr:
    (here / "read").write_text(line)
"""
LISTENER = r"""#!/bin/sh
cd "$(dirname "$0")"
# Its own output is no job's log.
./Runner.Worker 2>&1 | cat
"""
SAY = """
import json
from ci.runners.github import GitHub
from ci.runners.runners import GITHUB
from ci.runners.service import Place
from ci.runners.units import Allowed, Units
from gpu_agent.model.observations import Holding
from gpu_agent.reporting.joblog import step_stderr
from machine import polling

service, unit = GitHub("https://github.com", "acme", "token"), Units().unit("cd34")
place = Place("host-0-cd34", (), str(unit.files), str(unit.home), {})
command = service.command("/opt/logs/run.sh", place)
unit.begin(command, {"jitconfig": "s3cr3t"}, {}, Allowed([]))
copy, found = unit.home / "runner", {}
polling.until((copy / "began").exists, 30)
job = Holding(unit.slice, "", ("GPU-0",), 1.0, True, kind="runner")

def say(reader):
    outcome, left = step_stderr.say(job, b"[gpu-ci] a line\\n", reader)
    return outcome.name, left.decode()

found["said"], found["of_the_listener"] = say(GITHUB.log_reader), say("")
polling.until((copy / "read").exists, 30)
found["read"] = (copy / "read").read_text()
unit.kill()
polling.until(lambda: not Units().names(), 30)
found["over"] = say(GITHUB.log_reader)
unit.clear()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def host():
    with selftest_machine.started("github") as found:
        folder = "/opt/release"
        found.sh(f"mkdir -p {folder}; cat > {folder}/run.sh <<'END'\n{PROGRAM}END\n")
        found.sh(f"chmod 755 {folder}/run.sh")
        for name, text in (("run.sh", LISTENER), ("Runner.Worker", WORKER)):
            found.sh(f"mkdir -p /opt/logs; cat > /opt/logs/{name} <<'END'\n{text}END\n")
            found.sh(f"chmod 755 /opt/logs/{name}")
        yield found


def test_a_runner_has_a_copy_of_its_program_and_its_registration(host):
    found = json.loads(host.run(BEGIN))
    secret = "s3cr3t" * 1000
    assert not found["before"]
    assert found[".runner"] == secret
    assert "s3cr3t" not in found["arguments"]
    assert "s3cr3t" not in found["environment"]
    assert "GIVEN=1" in found["environment"].splitlines()
    assert host.sh("ls -A /opt/release").stdout.split() == ["run.sh"]
    assert found["left"] == []


def test_a_line_reaches_the_step_of_a_job_and_not_what_the_listener_reads(host):
    found = json.loads(host.run(SAY))
    line = "[gpu-ci] a line\n"
    assert found["said"] == ["SAID", ""]
    assert found["read"] == line
    assert found["of_the_listener"][0] == "NEVER"
    assert found["over"] == ["NOBODY", line]
