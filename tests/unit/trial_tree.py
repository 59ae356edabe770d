# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A copy of the product in which a trial change is made, and which files the change touched."""

import collections.abc
import dataclasses
import pathlib
import shutil
import subprocess
import sys
import zipfile

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


@dataclasses.dataclass(frozen=True)
class Stub:
    """A room that the product does not have, and its lines in the files that know all such rooms.

    Attributes:
        kind: the folder in trial/ that has it.
        room: where the product has it.
        lines: by file, the lines that are added, by the line above each.
    """

    kind: str
    room: pathlib.Path
    lines: collections.abc.Mapping[pathlib.Path, collections.abc.Mapping[str, str]]


VENDORS = pathlib.Path("lib/gpu_agent/gpu/vendors")
ENGINES = pathlib.Path("lib/gpu_agent/engines")
CI = pathlib.Path("src/ci")
VENDOR = Stub(
    "vendor",
    VENDORS / "stub",
    {
        VENDORS / "registry.py": {
            "from gpu_agent.gpu.vendors.nvidia.vendor import VENDOR as NVIDIA\n": (
                "from gpu_agent.gpu.vendors.stub.vendor import VENDOR as STUB\n"
            ),
            "    INTEL,\n": "    STUB,\n",
        }
    },
)
ENGINE = Stub(
    "engine",
    ENGINES / "stub",
    {
        ENGINES / "registry.py": {
            "from gpu_agent.engines.podman.engine import ENGINE as PODMAN\n": (
                "from gpu_agent.engines.stub.engine import ENGINE as STUB\n"
            ),
            "    DOCKER,\n": "    STUB,\n",
        }
    },
)
# Juju reads actions from one file, and nothing else declares them.
CI_SYSTEM = Stub(
    "ci",
    CI / "stub",
    {
        CI / "systems.py": {
            "from ci.concourse import concourse\n": "from ci.stub import stub\n",
            "    Room(none.OPTIONS, none.NoCiSystem),\n": "    Room(stub.OPTIONS, stub.Stub),\n",
        },
        pathlib.Path("actions.yaml"): {
            "# See LICENSE file for licensing details.\n": """\
stub-hold:
  description: Hold the stub's CI, or let it run.
  params:
    hold:
      type: boolean
      default: true
  additionalProperties: false

"""
        },
    },
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


def by_hand(tree: pathlib.Path, *stubs: Stub) -> set[pathlib.Path]:
    """Those that a developer has changed, outside the rooms of these stubs."""
    homes = {stub.room for stub in stubs}
    return {path for path in touched(tree) - GENERATED if homes.isdisjoint(path.parents)}


def written(tree: pathlib.Path) -> set[pathlib.Path]:
    """Those that scripts/tables has changed."""
    return touched(tree) & GENERATED


def change(path: pathlib.Path, old: str, new: str) -> None:
    """Replace a text that a file has once."""
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def add(tree: pathlib.Path, *stubs: Stub) -> None:
    """Have these rooms in a copy."""
    for stub in stubs:
        shutil.copytree(
            TRIAL / stub.kind / "stub",
            tree / stub.room,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for path, lines in stub.lines.items():
            for above, line in lines.items():
                change(tree / path, above, above + line)


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


def pack(charm: pathlib.Path, tree: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Write what scripts/pack would make of a copy, from the packed product.

    A charm has src, lib and templates as they are in its tree, and yaml files that say the same
    (tests/functional/test_pack.py). The rest is of no trial. So those that differ go in.
    """
    changed = touched(tree)
    with zipfile.ZipFile(charm) as before, zipfile.ZipFile(target, "w") as after:
        for entry in before.infolist():
            if pathlib.Path(entry.filename) not in changed:
                after.writestr(entry, before.read(entry), compress_type=zipfile.ZIP_STORED)
        for path in changed:
            if path.parts[0] in ("src", "lib", "templates") or str(path) in before.namelist():
                after.write(tree / path, path)
    return target
