# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The rules of the house hold over src and lib, and each rule notices when it is broken.

Who may import whom is said by the contracts in pyproject.toml, which `make lint` checks.
"""

import ast
import collections.abc
import pathlib
import re
import subprocess
import sys

import pytest
import tomlkit

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Same input, same answer: no clock, file, process or chance.
PURE = {
    *("plan", "options", "relations.model", "relations.worker_view"),
    *("ci.concourse.plan", "ci.concourse.options", "ci.concourse.upstream"),
    *("gpu_agent.model", "gpu_agent.fault_policy", "gpu_agent.engines.engine"),
    *(f"gpu_agent.diagnosis.{name}" for name in ("driver_states", "facts", "states")),
    *(f"gpu_agent.diagnosis.{name}" for name in ("toolkit_states", "toolkit_versions")),
    "gpu_agent.runtime.settings",
    "machine.errors",
    *(f"gpu_agent.reporting.receipts.{name}" for name in ("account", "receipt", "report")),
}
IMPURE_MODULES = {
    *("datetime", "fcntl", "glob", "io", "machine", "os", "pathlib", "random", "secrets"),
    *("shutil", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request"),
}
# Programs of their own that are copied or run as single files, by a Python without site-packages.
SINGLE_FILES = {
    *("ci.concourse.worker.http_watchdog", "ci.concourse.worker.overlay_probe"),
    *("gpu_agent.gpu_run.client", "gpu_selftest.isolation.probe", "machine.ports"),
}
# What one room alone does with files: backups, frozen control groups, the copy that programs run
# from, a job's standard error, a folder for gpg.
WITH_SIDE_EFFECTS = {
    *("ci.concourse.backup.archive", "ci.concourse.restart.cgroup_freezer", "gpu_agent.install"),
    *("ci.runners.containers.__main__", "gpu_agent.reporting.joblog.process_stderr"),
    "host.openpgp",
}
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
# Everything but the runtime in lib/gpu_runtime, which has rules of its own, and lib/machine.
WITHOUT_SIDE_EFFECTS = ("src", "lib/gpu_agent", "lib/gpu_selftest")
HEADER = [
    "# Copyright 2026 The gpu-ci-worker authors",
    "# See LICENSE file for licensing details.",
]
# Package to the module that it is imported as, where the names differ.
MODULE_OF = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}


def python_files(root: pathlib.Path, *folders: str) -> list[pathlib.Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


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


def purity(root: pathlib.Path) -> list[str]:
    broken = []
    for path, tree in parsed(root, "src", "lib"):
        if not is_in(dotted(root, path), PURE):
            continue
        broken += [
            f"{path}:{line}: a pure module imports {name}"
            for line, name in imports(tree)
            if is_in(name, IMPURE_MODULES) and not is_in(name, PURE)
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
    for path, tree in parsed(root, *WITHOUT_SIDE_EFFECTS):
        if dotted(root, path) in SINGLE_FILES | WITH_SIDE_EFFECTS:
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


def python_is_enough(root: pathlib.Path) -> list[str]:
    """The runtime needs the standard library and itself. A single file has not even the latter."""
    broken = []
    for path, tree in parsed(root, "src", "lib"):
        module = dotted(root, path)
        if not is_in(module, {"gpu_runtime", *SINGLE_FILES}):
            continue
        own = () if module in SINGLE_FILES else ("gpu_runtime",)
        broken += [
            f"{path}:{line}: {module} imports {name}"
            for line, name in imports(tree)
            if name.split(".")[0] not in (*sys.stdlib_module_names, *own)
        ]
    return broken


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


def asked(root: pathlib.Path) -> set[str]:
    """What requirements.in asks for, with the files of this tree that it includes, as modules."""
    todo, names = ["requirements.in"], set()
    while todo:
        text = (root / todo.pop()).read_text()
        todo += re.findall(r"^-r (\S+)$", text, re.M)
        names |= {*re.findall(r"^([A-Za-z0-9][A-Za-z0-9-]*)", text, re.M)}
    return {MODULE_OF.get(name, name) for name in names}


def packages(root: pathlib.Path) -> list[str]:
    """The charm carries what src imports, and nothing else.

    The workload of the self-test has an environment of its own (test_selftest_environment.py).
    """
    carried = asked(root)
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
    headers,
    no_broad_except,
    packages,
    purity,
    python_is_enough,
    side_effects_only_in_machine,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    assert rule(ROOT) == []


PLANTED = [
    (headers, "lib/gpu_agent/paths.py", "import json", "header"),
    (python_is_enough, "lib/gpu_runtime/container_spec.py", "import tomlkit", "tomlkit"),
    (python_is_enough, "lib/gpu_runtime/container_spec.py", "from plan import plan", "plan"),
    (python_is_enough, "lib/gpu_selftest/isolation/probe.py", "import gpu_runtime", "gpu_runtime"),
    (python_is_enough, "lib/machine/ports.py", "from machine import files", "machine.files"),
    (no_broad_except, "src/ci/web.py", "try:\n    x()\nexcept Exception:\n    pass", ":3:"),
    (no_broad_except, "lib/gpu_runtime/x.py", "try:\n    x()\nexcept:\n    pass", ":3:"),
    (no_broad_except, "src/x.py", "try:\n    x()\nexcept (A, BaseException):\n    pass", ":3:"),
    (packages, "src/ci/web.py", "import requests", "requests"),
    (packages, "src/ci/web.py", "", "jinja2"),
    (purity, "src/plan/plan.py", "import time", "time"),
    (purity, "lib/gpu_agent/model/inventory.py", "import urllib.request", "urllib"),
    (purity, "lib/gpu_agent/diagnosis/facts.py", "from machine import files", "machine"),
    (purity, "src/options/table.py", "open('x')", "open"),
    (side_effects_only_in_machine, "src/ci/web.py", "import subprocess", "subprocess"),
    (side_effects_only_in_machine, "src/ci/web.py", "import os\nos.execv('a', [])", "os.execv"),
    (side_effects_only_in_machine, "src/ci/web.py", "shutil.rmtree('x')", "rmtree"),
    (side_effects_only_in_machine, "lib/gpu_agent/paths.py", "p.write_text('')", "write_text"),
    (side_effects_only_in_machine, "lib/gpu_selftest/run.py", "open('x', 'w')", "open"),
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
    *((f"src/plan/{name}.py", "import re") for name in ("state", "plan")),
    ("src/charm.py", "import ops\nfrom plan import plan\nfrom ci.concourse.web import web"),
    ("src/ci/concourse/worker/overlay_probe.py", "import os\nos.rename('a', 'b')"),
    (
        "lib/gpu_agent/diagnosis/machine.py",
        "from gpu_agent.model.inventory import Gpu\nfrom machine import process\nopen('x').read()",
    ),
    ("lib/gpu_selftest/run.py", "import jinja2\nfrom machine import files"),
    ("lib/machine/files.py", "import os\nimport subprocess\nos.rename('a', 'b')"),
    ("lib/machine/units.py", "try:\n    x()\nexcept BaseException:\n    y()\n    raise"),
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


LINTER = tomlkit.parse((ROOT / "pyproject.toml").read_text()).unwrap()["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract for contract in LINTER["contracts"]}


def test_every_room_has_its_layer():
    """At the top of src and lib. Of rooms in the agent and in Concourse import-linter says it."""
    tops = [path for base in ("src", "lib") for path in (ROOT / base).iterdir()]
    packages = {path.name for path in tops if (path / "__init__.py").exists()}
    modules = {path.stem for path in tops if path.suffix == ".py"}
    layers = [name for layer in CONTRACTS["product"]["layers"] for name in layer.split(" | ")]
    as_both = {form for name in modules for form in (f"src.{name}", f"({name})")}
    assert set(layers) == packages | as_both
    assert set(LINTER["root_packages"]) == packages | {"src"}
    assert set(CONTRACTS["circles"]["ancestors"]) == packages


@pytest.mark.parametrize(
    ("folder", "contracts"),
    [("gpu/vendors", ("vendors", "rooms")), ("engines", ("engines", "engine-rooms"))],
)
def test_every_vendor_and_engine_is_kept_apart(folder, contracts):
    home = ROOT / "lib/gpu_agent" / folder
    rooms = {dotted(ROOT, path.parent) for path in home.glob("*/__init__.py")}
    modules, protected = (CONTRACTS[contract] for contract in contracts)
    assert set(modules["modules"]) == set(protected["protected_modules"]) == rooms


def test_every_ci_system_is_kept_apart():
    home = ROOT / "src/ci"
    own = {"__init__", "system", "systems"}
    rooms = {path.stem for path in (*home.glob("*.py"), *home.glob("[a-z]*/"))} - own
    assert set(CONTRACTS["ci-rooms"]["protected_modules"]) == {f"ci.{name}" for name in rooms}


def test_program_is_kept_from_all_that_the_charm_carries():
    assert set(CONTRACTS["program"]["forbidden_modules"]) == asked(ROOT)


# Contract, who imports, and what it must not.
FORBIDDEN = [
    ("product", "gpu_agent.paths", "plan.status"),
    ("product", "gpu_agent.model.card", "gpu_selftest.run"),
    ("product", "gpu_runtime.proc", "machine.files"),
    ("product", "plan.gpus", "ci.concourse.web.web"),
    ("product", "plan.labels", "observe"),
    ("product", "src.observe", "actions.dispatch"),
    ("agent", "gpu_agent.model.card", "gpu_agent.health.loop"),
    ("gpus", "gpu_agent.gpu.kernel.pci", "gpu_agent.gpu.vendors.detect"),
    ("concourse", "ci.concourse.web.tls", "ci.concourse.backup.backup"),
    ("runners", "ci.runners.labels", "ci.runners.units"),
    ("vendors", "gpu_agent.gpu.vendors.amd.inventory", "gpu_agent.gpu.vendors.nvidia.nvml"),
    ("engines", "gpu_agent.engines.podman.config", "gpu_agent.engines.docker.json_edit"),
    ("rooms", "plan.gpus", "gpu_agent.gpu.vendors.amd.inventory"),
    ("rooms", "gpu_agent.gpu.probe.probe_program", "gpu_agent.gpu.vendors.nvidia.nvml"),
    ("ci-rooms", "actions.dispatch", "ci.concourse.release"),
    ("ci-rooms", "ci.none", "ci.concourse.upstream"),
    ("engine-rooms", "src.effects", "gpu_agent.engines.docker.daemon_json"),
    ("juju", "machine.users", "ops"),
    ("juju", "src.observe", "ops"),
    ("program", "ci.concourse.api.api", "jinja2"),
]
CIRCLE = ("machine.files", "machine.systemd")


def lint_imports(config: pathlib.Path, tree: pathlib.Path) -> str:
    """What import-linter says of a tree, as of the pyproject.toml in a folder, in breach of it."""
    done = subprocess.run(
        [pathlib.Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=config,
        # Wider than any line of it, which it would break as for a terminal.
        env={"PYTHONPATH": f"{tree}/src:{tree}/lib:{tree}", "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> dict[str, str]:
    """What is said by contract, where a copy of the code has all those imports at once."""
    tree = tmp_path_factory.mktemp("tree")
    for path in [ROOT / "pyproject.toml", *python_files(ROOT, "src", "lib")]:
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    for importer, imported in [*(pair for _, *pair in FORBIDDEN), CIRCLE]:
        name = importer.removeprefix("src.").replace(".", "/")
        paths = [tree / base / f"{name}.py" for base in ("src", "lib")]
        with next(path for path in paths if path.exists()).open("a") as file:
            file.write(f"import {imported}\n")
    said = re.split(r"^(.+)\n-+\n", lint_imports(tree, tree), flags=re.M)
    by_name = dict(zip(said[1::2], said[2::2], strict=True))
    return {id_: by_name.get(contract["name"], "") for id_, contract in CONTRACTS.items()}


@pytest.mark.parametrize(("contract", "importer", "imported"), FORBIDDEN)
def test_contract_notices(contract, importer, imported, broken):
    assert f"{importer} -> {imported} " in broken[contract]


def test_contract_notices_a_circle(broken):
    assert "No cycles are allowed in machine." in broken["circles"]


def test_each_contract_is_shown_to_notice():
    assert {contract for contract, *_ in FORBIDDEN} | {"circles"} == set(CONTRACTS)


def test_exception_that_nothing_needs_is_an_error(tmp_path):
    unneeded = "plan.labels -> host.openpgp"
    contracts = (ROOT / "pyproject.toml").read_text()
    contracts = contracts.replace(
        "ignore_imports = [\n", f'ignore_imports = [\n"{unneeded}",\n', 1
    )
    (tmp_path / "pyproject.toml").write_text(contracts)
    said = lint_imports(tmp_path, ROOT)
    assert said.strip() == f"No matches for ignored import {unneeded}."
