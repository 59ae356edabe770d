# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Run the self-test by hand on a machine of the lab, and read its results."""

import dataclasses
import json
import re
from typing import Any

from tests.lab.site import Site

LAUNCHER = "/opt/gpu-ci/bin/gpu-selftest"
_STATUS = {"passed": 0, "failed": 1, "incomplete": 3}
# Outcomes of a red check; other checks did not run, or did not apply.
RED = ("failed", "warning")
_COLLECT = """
import glob, json, sys
files = glob.glob("/var/lib/gpu-ci/quarantine/*.json")
print(json.dumps({
    "status": int(sys.argv[1]),
    "report": json.load(open("/run/lab-selftest.json")),
    "quarantine": {path.rpartition("/")[2][:-5]: json.load(open(path)) for path in files},
}))
"""
_RUN = """
set -e
{before}
status=0
{around} {launcher} {arguments} --json >/run/lab-selftest.json 2>/run/lab-selftest.err || status=$?
if [ ! -s /run/lab-selftest.json ]; then cat /run/lab-selftest.err >&2; exit 1; fi
/usr/bin/python3 -I -c '{collect}' $status
"""


@dataclasses.dataclass(frozen=True)
class Seen:
    """One run of the self-test.

    Attributes:
        report: as last.json has it.
        quarantine: the files of GPUs that are out of use afterwards, by the GPU's index.
        gpus: the index of each GPU by its id.
    """

    report: dict[str, Any]
    quarantine: dict[int, dict[str, str]]
    gpus: dict[str, int]

    def results(self) -> dict[tuple[str, int | None], dict[str, Any]]:
        """Each result by its check and the GPU's index, None of the worker as a whole."""
        found = {}
        for result in self.report["results"]:
            key = result["check"], self.gpus.get(result["gpu"])
            assert key not in found, f"two results of {key}"
            found[key] = result
        return found

    def outcomes(self) -> dict[tuple[str, int | None], str]:
        """How each of them ended."""
        return {key: result["outcome"] for key, result in self.results().items()}

    def why(self) -> list[str]:
        """Describe the checks that did not pass, for people who read a failed test."""
        return [
            f"{result['check']} {result['outcome']}: {result['text']}"
            for result in self.report["results"]
            if result["outcome"] not in ("passed", "skipped")
        ]


def indexes(site: Site) -> dict[str, int]:
    """The index of each GPU that tasks may get, by its id."""
    uuids = re.findall(r'"uuid": "(GPU-[^"]+)"', site.sh("cat /etc/gpu-ci/policy.json"))
    return {uuid: index for index, uuid in enumerate(uuids)}


def take(
    site: Site, gpus: dict[str, int], level: str = "quick", before: str = ":", around: str = ""
) -> Seen:
    """Run the self-test on worker/0.

    Args:
        site: the lab.
        gpus: as `indexes` has them.
        level: how much.
        before: shell that comes first.
        around: what starts it, such as a mount namespace of its own.
    """
    script = _RUN.format(
        before=before,
        around=around,
        launcher=LAUNCHER,
        arguments=f"--level {level}",
        collect=_COLLECT,
    )
    # As a service of the machine's own: containers are made in the cgroups that it is in.
    done = site.machine().run(["/bin/bash", "-c", script])
    told = json.loads(done.stdout)
    assert told["status"] == _STATUS[told["report"]["outcome"]]
    entries = {gpus[uuid]: entry for uuid, entry in told["quarantine"].items()}
    return Seen(told["report"], entries, gpus)
