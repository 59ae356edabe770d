# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""docs/reference/status.md has one entry for each kind of status line, and each text is short."""

import pathlib
import re
import string

import pytest

from ci.concourse.plan import messages as concourse
from ci.runners import messages as runners
from gpu_agent.diagnosis import driver_states, toolkit_states
from plan import messages
from plan.messages import Level

KINDS = {
    **messages.KINDS.by_code,
    **concourse.KINDS.by_code,
    **runners.KINDS.by_code,
}
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/status.md"
ENTRIES = re.findall(r"^\| `([a-z0-9-]+)` \| (.*)$", PAGE.read_text(), re.M)
SECTION = {
    "Blocked": Level.BLOCKED,
    "Waiting": Level.WAITING,
    "Maintenance": Level.MAINTENANCE,
    "Active": Level.ACTIVE,
}
HOST = [
    *(*driver_states.TABLE, *driver_states.NOTES),
    *(*toolkit_states.TABLE, *toolkit_states.NOTES),
]

# Long but plausible values on a machine with 8 GPUs; a value that is missing here is a mistake.
VALUES = {
    "application": "gpu-ci-worker-a100",
    "architecture": "arm64",
    "before": "8.3.0",
    "cause": "the driver does not answer",
    "addresses": "0000:41:00.0, 0000:c1:00.0",
    "count": 3,
    "day": "2026-12-03",
    "days": 120,
    "endpoint": "worker-tsa",
    "folder": "/srv/datasets/imagenet-2012: it is missing",
    "found": "8 GPUs",
    "gpus": "0, 1, 2, 3, 4, 5, 6, 7",
    "have": "0, 1, 2, 3, 4, 5, 6, 7",
    "lacks": "runner-secret",
    "left": "no step here, but unfinished builds have data here",
    "longest": 280,
    "name": "ci-production-gpu-ci-worker-a100-12",
    "nouns": "GPUs and MIG devices",
    "other": "concourse-web-production",
    "ours": "8.2.5",
    "out": 5,
    "all": 8,
    "owner": "gpu-ci-worker-a100/12 of model ci-production",
    "path": "/opt/containerd/bin/runc",
    "port": 7777,
    "reason": "the fans of this machine are replaced today",
    "refused": "concourse-version of concourse-web-production/12: is not X.Y.Z",
    "rival": "snap.docker.dockerd.service",
    "ready": "Web and worker ready",
    "scope": "research/gpu-benchmarks",
    "service": "Gitea",
    "starts": 12,
    "test": "self-test of one GPU",
    "text": "gpu-metrics-port 'x' can't be used: use 0, or 1 to 1023 but none that is taken",
    "theirs": "8.3.0",
    "then": "Concourse 8.4.0",
    "timeout": "1h30m",
    "turn": "gpu-ci-worker-a100/12 drains first",
    "units": "gpu-ci-worker-a100/12, gpu-ci-worker-a100/13",
    "unknown": "GPU-8f21b6c4-52e1-4f0c-9c3e-0d8a4c5b6e7f",
    "url": "http://concourse.production.example.com:8080",
    "vendor": "NVIDIA",
    "version": "8.3.1",
    "waited": "1h25m",
    "wanted": "192.168.122.0/24",
    "web": "8.2.5",
    "webs": "concourse-web-a and concourse-web-b",
    "why": "its worker does not run",
}
# A list of GPUs with a reason for each, as status forms it.
REASONS = "GPU 0, 1 (Xid 79), GPU 3 (row remapping failed), GPU 5 (recovery needed)"
GITEA = "https://gitea.production.example.com"
OWN = {
    "no-shared-database": {"units": 3},
    "gpus-cordoned": {"gpus": "GPU 0, 1 (fan replaced tomorrow), GPU 7 (kept for benchmarks)"},
    "gpus-quarantined": {"gpus": REASONS},
    "all-gpus-unavailable": {"gpus": f"4 quarantined: {REASONS}"},
    "relation-idle": {"why": "in deployment-mode worker"},
    "certificate-refused": {"why": "DOMAIN_NOT_ALLOWED: only *.example.com is signed"},
    "runner-token-refused": {"url": GITEA},
    "runner-scope-unknown": {"url": GITEA},
    "runner-service-strange": {
        "url": GITEA,
        "text": "to list the runners: the answer is no JSON object",
    },
    "runner-clock-wrong": {
        "text": "to get a token for the GitHub App: this machine's clock is 7320 s behind "
        "GitHub's: set it, and keep it right by NTP",
    },
    "runner-service-away": {"text": f"{GITEA} does not answer: timed out"},
    "runner-cannot-begin": {
        "text": "a runner cannot use its GPUs: GPU-8f21b6c4-52e1-4f0c-9c3e-0d8a4c5b6e7f is in use "
        "by process 3817204",
    },
}


def pattern(text):
    """Return a template with `<name>` for each value."""
    return re.sub(r"{(\w+)}", r"<\1>", text)


def test_each_kind_has_one_entry_and_each_entry_a_kind():
    codes = [*KINDS, *(row.code for row in HOST)]
    assert sorted(code for code, _ in ENTRIES) == sorted(codes)
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("code", KINDS)
def test_an_entry_shows_the_text(code):
    kind, cells = KINDS[code], dict(ENTRIES)[code]
    text = pattern(": ".join(filter(None, (kind.what, kind.remedy)))).replace("|", "\\|")
    assert cells.startswith(f"`{text}` | ")


def test_an_entry_stands_under_its_level():
    level = None
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            level = SECTION.get(line.removeprefix("## "))
        found = re.match(r"\| `([a-z0-9-]+)` \|", line)
        if found and level:
            assert KINDS[found[1]].level is level


@pytest.mark.parametrize("code", KINDS)
def test_a_text_fits_before_its_remedy(code):
    what = KINDS[code].what
    names = {name for _, name, _, _ in string.Formatter().parse(what) if name}
    assert names <= VALUES.keys()
    shown = what.format(**{**VALUES, **OWN.get(code, {})})
    assert len(shown) <= 120, shown
    assert not shown.endswith(".")
    assert shown.isprintable()
