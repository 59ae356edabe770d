# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""README and docs are current: tables, links, paths, example pipelines."""

import ast
import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from gpu_agent.fault_policy import fault_table as faults
from gpu_agent.reporting.receipts.receipt import OUTCOMES, GpuReceipt, Receipt
from gpu_selftest.burnin import level as burnin
from gpu_selftest.compute import level as compute
from gpu_selftest.isolation import level as isolation
from gpu_selftest.quick import gpu_checks, host_checks

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
    page for glob in ("*.md", "docs/**/*.md", "examples/*.md") for page in ROOT.glob(glob)
)


def test_tables_are_made_from_options_actions_and_checks():
    check = subprocess.run(
        [sys.executable, ROOT / "scripts/tables", "--check"], timeout=30, check=False
    )
    assert check.returncode == 0, "run .venv/bin/python scripts/tables"


def test_tables_name_every_check():
    reference = (ROOT / "docs/reference/selftest.md").read_text()
    for module in (host_checks, gpu_checks, isolation, compute, burnin):
        for check in module.CHECKS:
            assert reference.count(f"| `{check.id}` |") == 1


def test_the_page_of_faults_has_each_row_once():
    reference = (ROOT / "docs/reference/health.md").read_text()
    for row in faults.TABLE:
        assert reference.count(f"| `{row.name}` |") == 1


def test_the_page_of_receipts_has_each_field():
    reference = (ROOT / "docs/reference/receipts.md").read_text()
    for field in (*dataclasses.fields(Receipt), *dataclasses.fields(GpuReceipt)):
        assert f"| `{field.name}` |" in reference
    for outcome in OUTCOMES:
        assert f"| `{outcome}` |" in reference


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def anchors(page):
    """The names by which headings of a page can be linked, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_promise_names_tests_that_exist():
    text = (ROOT / "SECURITY.md").read_text()
    promises = [line for line in text.splitlines() if re.match(r"\| [A-Z]", line)]
    assert len(promises) > 12
    for promise in promises:
        proofs = re.findall(r"`((?:tests/[\w/]+\.py)?(?:::\w+)?)`", promise.rsplit(" | ", 1)[1])
        assert proofs, promise
        page = ROOT
        for proof in proofs:
            path, _, name = proof.partition("::")
            page = ROOT / path if path else page
            assert page.is_file(), proof
            assert not name or f"\ndef {name}(" in page.read_text(), proof


def texts(path):
    """What a file says to people: all of it, of a program its strings."""
    if path.suffix != ".py":
        return [path.read_text()]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            found.append("".join(map(str, parts)))
    return found


SAYS_COMMANDS = sorted(
    path
    for pattern in ("src/**/*.py", "lib/**/*.py", "src/**/*.rules", "docs/**/*.md", "*.md")
    for path in ROOT.glob(pattern)
    if "juju run" in path.read_text()
)
COMMAND = re.compile(
    r"juju run(?: --[\w=-]+)* (?:<?[\w{}.$/ -]+?>?) "
    r"([a-z]+(?:-[a-z]+)+|pause|resume|backup|restore)\b"
    r"((?: [a-z][a-z-]*=(?:\{\{.*?\}\}|[^\s`\"'),;]|'[^']*'|\"[^\"]*\")+)*)"
)


@pytest.mark.parametrize("path", SAYS_COMMANDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_juju_takes_each_action_that_is_named(path):
    """An alert or a status that names a command has all that its action needs."""
    actions = yaml.safe_load((ROOT / "actions.yaml").read_text())
    for text in texts(path):
        for name, words in COMMAND.findall(re.sub(r"\s+", " ", text)):
            assert name in actions, name
            known = actions[name].get("params", {})
            given = re.findall(r" ([a-z][a-z-]*)=", words)
            assert set(given) <= set(known), (name, given)
            needed = set(actions[name].get("required", ()))
            assert needed <= set(given), f"{name} needs {needed}: {words}"


def test_the_map_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    listed = text.partition("\n## ")[0]
    for package in (*(ROOT / "src").iterdir(), *(ROOT / "lib").iterdir()):
        if package.name not in {"__pycache__"}:
            name = package.relative_to(ROOT)
            assert f"    {name}{'/' if package.is_dir() else ''} " in listed, name
    for path in re.findall(r"^    (\S+) ", listed, re.MULTILINE):
        assert (ROOT / path).exists(), path


def test_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def linked(index):
    """The pages beside and below an index that it links, each as often as it does."""
    targets = re.findall(r"\]\(([^)#]+\.md)[^)]*\)", index.read_text())
    return sorted(target for target in targets if not target.startswith(".."))


def test_the_index_links_each_page_once():
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/*/*.md")]
    records = [page for page in pages if re.match(r"decisions/\d", page)]
    assert linked(ROOT / "docs/README.md") == sorted(set(pages) - set(records))
    assert [f"decisions/{page}" for page in linked(ROOT / "docs/decisions/README.md")] == sorted(
        records
    )


RECORDS = sorted(ROOT.glob("docs/decisions/[0-9]*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_decision_record_has_its_number_date_parts_and_one_page(record):
    lines = record.read_text().splitlines()
    number = RECORDS.index(record) + 1
    assert record.name.startswith(f"{number:04}-")
    assert lines[0].startswith(f"# {number}. ")
    assert re.match(r"Status: .*\b20\d\d-\d\d-\d\d\b", lines[2])
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert [*headings[:2], *headings[-2:]] == [
        "Context", "Decision", "What it costs", "Where it holds",
    ]  # fmt: skip
    assert any(heading.startswith("Rejected") for heading in headings)
    assert 25 <= len(lines) <= 60


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_decision_record_names_files_that_exist(record):
    for path in re.findall(r"`([^`\s]+)`", record.read_text()):
        if re.match(r"(src|lib|tests|scripts|docs|templates)/[^<]*$", path):
            assert any(ROOT.glob(path)), path
        elif re.fullmatch(r"\w+(\*)?\.py", path):
            found = (ROOT / base for base in ("src", "lib", "tests"))
            assert any(any(base.rglob(path)) for base in found), path


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.yml")), ids=lambda e: e.name
)
def test_examples_are_pipelines_whose_tasks_ask_for_a_gpu(example):
    pipeline = yaml.safe_load(example.read_text())
    tasks = [step for job in pipeline["jobs"] for step in job["plan"] if "task" in step]
    assert tasks
    for task in tasks:
        assert "gpu" in task["tags"]
        assert task["config"]["platform"] == "linux"
