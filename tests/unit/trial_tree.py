# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A copy of the product in which a trial change is made, and which files the change touched."""

import collections.abc
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRIAL = pathlib.Path(__file__).with_name("trial")
FOLDERS = ("lib", "src", "docs", "scripts", "templates")
# What scripts/tables writes from the code.
GENERATED = frozenset(
    map(
        pathlib.Path,
        (
            "config.yaml",
            *(
                f"docs/reference/{name}.md"
                for name in ("options", "selftest", "status", "metrics")
            ),
            *(f"docs/reference/{name}.md" for name in ("toolkit-versions", "health", "receipts")),
        ),
    )
)


def make(tree: pathlib.Path) -> None:
    """Copy the product into an empty folder."""
    for base in FOLDERS:
        shutil.copytree(ROOT / base, tree / base, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*.yaml"):
        shutil.copy(path, tree)


def files(tree: pathlib.Path) -> dict[pathlib.Path, bytes]:
    """The product's files with their contents."""
    found = (path for base in FOLDERS for path in (tree / base).rglob("*"))
    return {
        path.relative_to(tree): path.read_bytes()
        for path in (*found, *tree.glob("*.yaml"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def touched(tree: pathlib.Path) -> set[pathlib.Path]:
    """The files that differ from the product's, new ones too."""
    before, after = files(ROOT), files(tree)
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def change(path: pathlib.Path, old: str, new: str) -> None:
    """Replace a text that a file has once."""
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def register(path: pathlib.Path, line: str, last: str, entry: str) -> None:
    """Add an import, and an entry after the last one of a tuple."""
    change(path, f"{last}\n)", f"{last}\n{entry}\n)")
    path.write_text(path.read_text().replace("\nfrom ", f"\n{line}\nfrom ", 1))


def write_tables(tree: pathlib.Path) -> None:
    """Write the generated files, as a developer does."""
    run(tree, tree / "scripts/tables")


def check(tree: pathlib.Path, name: str) -> None:
    """Run the checks of a file in trial/ with the modules of the copy."""
    run(
        ROOT,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-o", f"pythonpath={tree}/src {tree}/lib {ROOT}", TRIAL / name),
    )


def run(folder: pathlib.Path, *arguments: str | pathlib.Path) -> None:
    """Run Python."""
    done = subprocess.run(
        [sys.executable, "-B", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rooms(
    paths: collections.abc.Iterable[pathlib.Path], *homes: pathlib.Path
) -> set[pathlib.Path]:
    """Those of the files that are in these folders."""
    return {path for path in paths if any(home in path.parents for home in homes)}
