# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The rules of the house hold over src and lib, and each rule notices when it is broken."""

import ast
import collections.abc
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Imports go only downward. Modules of one floor do not import each other, those of one room may.
FLOORS = {
    "charm": 10,
    "actions": 9,
    "attempts": 8,
    "backup": 8,
    "equipment": 9,
    "fewer": 9,
    "handout": 9,
    "look": 9,
    "ownership": 9,
    "reboot": 9,
    "recovery": 9,
    "release_change": 9,
    "lookback": 9,
    "rotation": 8,
    "driver_upgrade": 8,
    "drain": 7,
    "engines": 7,
    "gpu_run": 7,
    "health": 7,
    "selftest": 7,
    "relations": 6,
    "gpu": 6,
    "host": 6,
    "oci": 6,
    "ci": 6,
    "receipts": 6,
    "wake": 6,
    "plan": 5,
    "actions.gpu_report": 8,
    "gpu_agent.reporting.receipts.account": 2,
    "gpu_agent.reporting.receipts.receipt": 1,
    "gpu_agent.reporting.receipts.report": 2,
    "ci.concourse.upstream": 1,
    "ci.concourse.options.web_variables": 1,
    "gpu_agent.model.decisions": 1,
    "gpu_agent.model.observations": 1,
    "gpu_agent.model.inventory": 0,
    "gpu_agent.gpu.vendors.nvidia.recovery_action": 0,
    "machine": 0,
    "gpu_agent.model.versions": 0,
}
# Same input, same answer: no clock, file, process or chance.
PURE = {
    *(
        "plan",
        "gpu_agent.model.versions",
        "ci.concourse.upstream",
        "ci.concourse.options.web_variables",
    ),
    *("gpu_agent.model.inventory", "gpu_agent.gpu.vendors.nvidia.recovery_action"),
    *(
        "gpu_agent.fault_policy.circuit_breaker",
        "gpu_agent.fault_policy.conditions",
        "gpu_agent.model.decisions",
        "gpu_agent.fault_policy.fault",
        "gpu_agent.fault_policy.fault_table",
    ),
    *(
        "gpu_agent.fault_policy.judge",
        "gpu_agent.fault_policy.state",
        "gpu_agent.model.observations",
    ),
    *(
        "gpu_agent.reporting.receipts.account",
        "gpu_agent.reporting.receipts.receipt",
        "gpu_agent.reporting.receipts.report",
    ),
}
IMPURE_MODULES = {
    *("datetime", "fcntl", "glob", "io", "machine", "os", "pathlib", "random", "secrets"),
    *("shutil", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request"),
}
# Works in containers of the self-test's own, which are thrown away. Becomes its caller's command.
IN_A_CONTAINER = {"gpu_selftest.isolation.probe", "gpu_agent.gpu_run.client"}
# What only lib/machine may use. Asking a server here how it is does not count.
SIDE_EFFECT_MODULES = {
    *("asyncio", "ftplib", "multiprocessing", "pty", "subprocess", "tempfile", "urllib.request"),
}
SIDE_EFFECT_OS_CALL = re.compile(
    r"exec[lv]\w*|spawn\w+|posix_spawn\w*|fork\w*|system|popen|kill\w*|chmod|l?chown|link|symlink|"
    r"mkdir|makedirs|remove\w*|rename\w*|replace|rmdir|unlink|truncate|utime|mknod|mkfifo|write"
)
SIDE_EFFECT_METHODS = {
    *("chmod", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink"),
    *("write_bytes", "write_text"),
}
# Everything but the runtime in lib/gpu_runtime, which has rules of its own.
WITH_FLOORS = ("src", "lib/machine")
HEADER = [
    "# Copyright 2026 The gpu-ci-worker authors",
    "# See LICENSE file for licensing details.",
]
# Package to the module that it is imported as, where the names differ.
MODULE_OF = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


def python_files(root: pathlib.Path, *folders: str) -> list[pathlib.Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def place(module: str) -> str | None:
    """The entry of FLOORS that a module belongs to: the longest that it is or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOORS), None)


def module_name(path: pathlib.Path, base: pathlib.Path) -> str:
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST) -> collections.abc.Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported; `from a import b` is a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (f"{node.module}." if node.module else "")
            yield from ((node.lineno, base + alias.name) for alias in node.names)


def is_in(name: str, modules: collections.abc.Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def dotted(root: pathlib.Path, path: pathlib.Path) -> str:
    """The name that a file of src or lib is imported by."""
    base = next(root / base for base in ("src", "lib") if root / base in path.parents)
    return module_name(path, base)


def parsed(root: pathlib.Path, *folders: str):
    for path in python_files(root, *folders):
        yield path, ast.parse(path.read_text(), str(path))


def floors(root: pathlib.Path) -> list[str]:
    broken = []
    for path, tree in parsed(root, *WITH_FLOORS):
        module = dotted(root, path)
        own = place(module)
        if own is None:
            broken.append(f"{path}: has no floor in this test")
            continue
        for line, name in imports(tree):
            if name.startswith("."):
                broken.append(f"{path}:{line}: relative import")
                continue
            other = place(name)
            if other and other != own and FLOORS[other] >= FLOORS[own]:
                broken.append(f"{path}:{line}: {own} imports {other}, which is not below it")
    return broken


def ops_only_at_the_door(root: pathlib.Path) -> list[str]:
    return [
        f"{path}:{line}: imports {name}"
        for path, tree in parsed(root, "src", "lib")
        for line, name in imports(tree)
        if is_in(name, ["ops"]) and place(dotted(root, path)) not in ("charm", "relations")
    ]


def purity(root: pathlib.Path) -> list[str]:
    broken = []
    for path, tree in parsed(root, "src"):
        if place(dotted(root, path)) not in PURE:
            continue
        broken += [
            f"{path}:{line}: a pure module imports {name}"
            for line, name in imports(tree)
            if is_in(name, IMPURE_MODULES)
        ]
        broken += [
            f"{path}:{node.lineno}: a pure module calls {node.func.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input", "__import__", "eval", "exec")
        ]
    return broken


def is_side_effect(node: ast.AST) -> bool:
    """Whether a call starts a process, or writes or removes a file."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        if isinstance(owner, ast.Name) and owner.id == "os":
            return SIDE_EFFECT_OS_CALL.fullmatch(name) is not None
        if isinstance(owner, ast.Name) and owner.id == "shutil":
            return name not in ("disk_usage", "which")
        if name in SIDE_EFFECT_METHODS:
            return True
        mode_at = 0
    else:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        mode_at = 1
    modes = node.args[mode_at : mode_at + 1] + [k.value for k in node.keywords if k.arg == "mode"]
    return name == "open" and any(
        isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes
    )


def side_effects_only_in_machine(root: pathlib.Path) -> list[str]:
    broken = []
    for path, tree in parsed(root, *WITH_FLOORS):
        module = dotted(root, path)
        if place(module) == "machine" or module in IN_A_CONTAINER:
            continue
        broken += [
            f"{path}:{line}: imports {name}"
            for line, name in imports(tree)
            if is_in(name, SIDE_EFFECT_MODULES)
        ]
        broken += [
            f"{path}:{node.lineno}: side effect outside machine: {ast.unparse(node)[:60]}"
            for node in ast.walk(tree)
            if is_side_effect(node)
        ]
    return broken


def lib_needs_python_only(root: pathlib.Path) -> list[str]:
    return [
        f"{path}:{line}: lib/gpu_runtime imports {name}"
        for path, tree in parsed(root, "lib/gpu_runtime")
        for line, name in imports(tree)
        if name.split(".")[0] not in (*sys.stdlib_module_names, "gpu_runtime")
    ]


def no_broad_except(root: pathlib.Path) -> list[str]:
    return [
        f"{path}:{node.lineno}: catches everything"
        for path, tree in parsed(root, "src", "lib")
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (
            node.type is None
            or {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
            & {"Exception", "BaseException"}
        )
        # What is raised on afterwards is not swallowed: that is tidying up.
        and not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None)
    ]


def headers(root: pathlib.Path) -> list[str]:
    broken = []
    for path in python_files(root, "src", "lib", "tests"):
        lines = path.read_text().splitlines()[:3]
        if lines[:1] and lines[0].startswith("#!"):
            lines = lines[1:]
        if lines[:2] != HEADER:
            broken.append(f"{path}: has not the two header lines")
    return broken


def packages(root: pathlib.Path) -> list[str]:
    """The charm carries what src imports, and nothing else.

    The workload of the self-test has an environment of its own (test_selftest_environment.py).
    """
    asked = re.findall(r"^([A-Za-z0-9-]+)", (root / "requirements.in").read_text(), re.M)
    carried = {MODULE_OF.get(name, name) for name in asked}
    own = {path.stem for base in ("src", "lib") for path in (root / base).glob("*")}
    imported = {
        name.split(".")[0]
        for path, tree in parsed(root, "src", "lib")
        for _, name in imports(tree)
        if path.parent.name != "workload"
    } - {*sys.stdlib_module_names, *own, ""}
    return [f"src imports {name}, which requirements.in lacks" for name in imported - carried] + [
        f"requirements.in has {name}, which src does not import" for name in carried - imported
    ]


RULES = [
    floors,
    headers,
    lib_needs_python_only,
    no_broad_except,
    ops_only_at_the_door,
    packages,
    purity,
    side_effects_only_in_machine,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    assert rule(ROOT) == []


PLANTED = [
    (floors, "src/plan/plan.py", "from gpu_selftest import report", "not below"),
    (
        floors,
        "lib/gpu_agent/gpu/vendors/detect.py",
        "from gpu_agent.diagnosis import machine as facts",
        "not below",
    ),
    (floors, "src/ci/web.py", "from gpu_agent import paths as wrapper", "not below"),
    (floors, "lib/gpu_agent/model/inventory.py", "from machine import files", "not below"),
    (floors, "lib/machine/files.py", "from plan import plan", "not below"),
    (floors, "src/ci/concourse/upstream.py", "from plan import model as parts", "not below"),
    (floors, "lib/gpu_agent/paths.py", "from . import policy", "relative"),
    (floors, "src/misc.py", "", "no floor"),
    (headers, "lib/gpu_agent/paths.py", "import json", "header"),
    (lib_needs_python_only, "lib/gpu_runtime/container_spec.py", "import tomlkit", "tomlkit"),
    (lib_needs_python_only, "lib/gpu_runtime/container_spec.py", "from plan import Plan", "plan"),
    (
        no_broad_except,
        "src/ci/web.py",
        "try:\n    x()\nexcept Exception:\n    pass",
        ":3:",
    ),
    (no_broad_except, "lib/gpu_runtime/x.py", "try:\n    x()\nexcept:\n    pass", ":3:"),
    (no_broad_except, "src/x.py", "try:\n    x()\nexcept (A, BaseException):\n    pass", ":3:"),
    (ops_only_at_the_door, "src/ci/web.py", "import ops", "ops"),
    (ops_only_at_the_door, "lib/gpu_runtime/container_spec.py", "from ops import testing", "ops"),
    (packages, "src/ci/web.py", "import requests", "requests"),
    (packages, "src/ci/web.py", "", "jinja2"),
    (purity, "src/plan/plan.py", "import time", "time"),
    (purity, "lib/gpu_agent/model/inventory.py", "import urllib.request", "urllib"),
    (purity, "src/options/table.py", "open('x')", "open"),
    (side_effects_only_in_machine, "src/ci/web.py", "import subprocess", "subprocess"),
    (
        side_effects_only_in_machine,
        "src/ci/web.py",
        "import os\nos.execv('a', [])",
        "os.execv",
    ),
    (side_effects_only_in_machine, "src/ci/web.py", "shutil.rmtree('x')", "rmtree"),
    (side_effects_only_in_machine, "src/ci/web.py", "p.write_text('')", "write_text"),
    (side_effects_only_in_machine, "src/ci/web.py", "open('x', 'w')", "open"),
    (side_effects_only_in_machine, "src/ci/web.py", "p.open(mode='ab')", "open"),
]


@pytest.mark.parametrize(("rule", "path", "source", "expected"), PLANTED)
def test_rule_notices(rule, path, source, expected, tmp_path):
    file = tmp_path / path
    (tmp_path / "src").mkdir()
    file.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "requirements.in").write_text("jinja2\n")
    file.write_text(source)
    assert any(expected in sentence for sentence in rule(tmp_path))


CLEAN = [
    *((f"src/{name}.py", "") for name in ("plan/state", "plan/plan", "selftest/run")),
    (
        "src/charm.py",
        "import ops\nfrom plan import plan\nfrom ci.concourse.web import web\nimport gpu_selftest.run",
    ),
    ("src/relations/tsa.py", "import ops\nfrom plan.state import Tsa\nfrom relations import juju"),
    (
        "lib/gpu_agent/gpu/vendors/detect.py",
        "from gpu_agent.model.inventory import Gpu\nfrom gpu_agent.gpu.vendors.nvidia import nvml\nopen('x').read()",
    ),
    ("lib/machine/files.py", "import os\nimport subprocess\nos.rename('a', 'b')"),
    ("lib/machine/units.py", "try:\n    x()\nexcept BaseException:\n    y()\n    raise"),
    (
        "src/ci/web.py",
        "import jinja2\nfrom machine import files\nfrom gpu_runtime import json_shape",
    ),
    ("lib/gpu_runtime/container_spec.py", "import os\nfrom gpu_runtime import json_shape"),
]


def test_rules_leave_good_code_alone(tmp_path):
    (tmp_path / "requirements.in").write_text("jinja2\nops\n")
    for path, source in CLEAN:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([*HEADER, source]))
    assert [sentence for rule in RULES for sentence in rule(tmp_path)] == []


def test_lib_runs_in_an_isolated_interpreter():
    """As on a worker: /usr/bin/python3 -I -S, nothing but the standard library in reach."""
    modules = [module_name(path, ROOT / "lib") for path in python_files(ROOT, "lib/gpu_runtime")]
    modules = [name for name in modules if not name.endswith("__main__")]
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'lib')!r}); import {', '.join(modules)}"
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-B", "-W", "error", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
