# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""No file outside a CI system's room names the CI system, but for a list with reasons."""

import collections.abc
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Concourse, its worker's API, its front door for workers, the folder in which its tasks work.
NAMES = re.compile(r"concourse|garden|\btsa\b|/tmp/build", re.IGNORECASE)
FOLDERS = ("lib", "src")
ROOM = "src/ci/concourse/"
# A file, or a folder with a slash at its end, and why it names a CI system.
REASONS = {
    "src/ci/systems.py": "The registration of the CI systems.",
    "src/relations/": "Concourse's relations, and the values that it gives to others by them.",
    "src/options/declaration.py": "The options of Concourse have topics, whose names people read.",
    "src/options/task_mounts.py": "Tasks of no CI system get the folders of another.",
    "src/grafana_dashboards/gpus.json": "Panels of the waits that Concourse's web measures.",
    "src/prometheus_alert_rules/web.rules": "Alerts on the metrics of Concourse's web.",
    "src/prometheus_alert_rules/gpus.rules": "It names an alert of web.rules.",
    "lib/gpu_selftest/settings.py": "A file of settings without a version has one known runc.",
    "lib/gpu_selftest/isolation/": "The containers that it makes have the shape of Concourse's.",
    "lib/gpu_agent/engines/docker/": "Concourse's worker has the socket that Docker's also wants.",
    "lib/gpu_runtime/policy.py": "The revision before left out how tasks are known.",
    "lib/gpu_runtime/environment.py": "The source of the order of variables.",
    "lib/gpu_runtime/holder_usage.py": "The source of the names of processes.",
    "lib/gpu_runtime/rootfs.py": "The source of the names of volumes.",
    "lib/gpu_runtime/seccomp.py": "It keeps to the profile that Concourse has.",
}


def named(root: pathlib.Path) -> collections.abc.Iterator[tuple[str, int, str]]:
    """Each line outside its room that names a CI system: file, number, text."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_dir() or path.suffix in (".pyc", ".txt"):
                continue
            if is_in(str(path.relative_to(root)), ROOM):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if NAMES.search(line):
                    yield str(path.relative_to(root)), number, line.strip()


def is_in(path: str, entry: str) -> bool:
    return path.startswith(entry) if entry.endswith("/") else path == entry


def unexplained(root: pathlib.Path) -> list[str]:
    return [
        f"{path}:{number}: {line}"
        for path, number, line in named(root)
        if not any(is_in(path, entry) for entry in REASONS)
    ]


def unneeded(root: pathlib.Path) -> list[str]:
    found = {path for path, _, _ in named(root)}
    return [entry for entry in REASONS if not any(is_in(path, entry) for path in found)]


def test_no_other_file_names_a_ci_system_without_a_reason():
    assert unexplained(ROOT) == []


def test_no_reason_is_kept_that_no_file_needs():
    assert unneeded(ROOT) == []


@pytest.mark.parametrize(
    ("path", "text", "is_seen"),
    [
        ("lib/gpu_agent/health/loop.py", "# the Concourse worker", True),
        ("lib/gpu_agent/health/loop.py", "path = '/tmp/build/0a1b2c3d'", True),
        ("lib/gpu_selftest/templates/unit.service", "Before=concourse-worker.service", True),
        ("lib/gpu_selftest/quick/disk.py", "GARDEN = 7777", True),
        ("src/parts/selftest.py", "asked of the TSA", True),
        ("src/parts/selftest.py", "the CI system's web", False),
        ("src/plan/status.py", "Concourse lands a worker", True),
        ("src/reconciler.py", "import ci.concourse.release", True),
        ("src/prometheus_alert_rules/health.rules", "expr: concourse_workers", True),
        ("lib/machine/download.py", "Check concourse-version", True),
        ("lib/gpu_runtime/grant.py", "# garden's handle", True),
        ("src/ci/concourse/web/web.py", "concourse", False),
        ("lib/gpu_selftest/settings.py", "concourse", False),
    ],
)
def test_a_name_is_seen(tmp_path, path, text, is_seen):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(f"\n{text}\n")
    assert unexplained(tmp_path) == ([f"{path}:2: {text}"] if is_seen else [])
