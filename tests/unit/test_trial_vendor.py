# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which files name a vendor of GPUs, and what the product does with one more.

trial/checks.py runs with a copy of this tree that has the stub of a vendor. Which files that
touches, and how a unit has it: tests/lab/test_trials.py.
"""

import ast
import collections.abc
import pathlib
import re

from tests.unit import trial_tree as trial

# As the name of a vendor, of its driver or of something of its, in code: not in comments and
# docstrings.
NAME = re.compile(r"nvidia|(?<![a-z])amd(?![a-z0-9])|amdgpu|(?<![a-z])intel(?![a-z])", re.I)

# Where else vendors are named, with the reason. For a further vendor none of these files changes.
ALLOWED = {
    "the registration of the vendors": "lib/gpu_agent/gpu/vendors/registry.py",
    "policies of the revision before, which have only the vendor's name": (
        "lib/gpu_runtime/device_vendors.py"
    ),
    "how podman and Docker let a person ask for devices, by the names that they know": (
        "lib/gpu_runtime/engine_metadata.py lib/gpu_runtime/engine_request.py"
    ),
    "NVIDIA's driver comes as packages, which the charm installs, loads and upgrades": (
        "lib/gpu_agent/diagnosis/driver_states.py lib/gpu_agent/diagnosis/facts.py "
        "lib/gpu_agent/diagnosis/states.py lib/gpu_selftest/watchdog.py "
        "src/actions/driver_upgrade.py src/effects.py src/host/kernel_settings.py "
        "src/host/nvidia_driver.py src/host/nvidia_driver_change.py "
        "src/host/nvidia_driver_reload.py src/host/nvidia_fabric_manager.py src/host/software.py "
        "src/lifecycle/driver_upgrade/machine.py src/lifecycle/driver_upgrade/record.py "
        "src/lifecycle/driver_upgrade/steps.py "
        "src/plan/host_software.py src/plan/model.py"
    ),
    "NVIDIA's container toolkit, which brings its GPUs into containers": (
        "lib/gpu_agent/diagnosis/machine.py lib/gpu_agent/diagnosis/toolkit_states.py "
        "lib/gpu_agent/diagnosis/toolkit_versions.py lib/gpu_agent/engines/engine.py "
        "lib/gpu_agent/engines/front.py lib/gpu_agent/engines/registry.py "
        "lib/gpu_agent/runtime/install.py lib/gpu_agent/runtime/nvidia_config.py "
        "lib/gpu_agent/runtime/settings.py lib/gpu_runtime/container_spec.py "
        "lib/gpu_runtime/engine_call.py lib/gpu_runtime/engine_spec.py "
        "lib/gpu_runtime/environment.py lib/gpu_runtime/grant.py "
        "lib/gpu_runtime/image_requirements.py lib/gpu_runtime/policy.py "
        "lib/gpu_runtime/task_call.py lib/gpu_selftest/isolation/escape_attempts.py "
        "lib/gpu_selftest/isolation/level.py lib/gpu_selftest/quick/host_checks.py "
        "lib/gpu_selftest/quick/runtime_checks.py lib/gpu_standalone/start.py "
        "src/host/nvidia_toolkit.py "
        "src/host/toolkit_trial.py src/observe.py src/options/table.py src/options/values.py "
        "src/plan/plan.py"
    ),
    "NVIDIA's nodes, which its toolkit brings, beside those that a policy lists": (
        "lib/gpu_agent/device_rules.py lib/gpu_agent/gpu_run/__main__.py "
        "lib/gpu_runtime/device_nodes.py lib/gpu_selftest/isolation/container_view.py "
        "lib/gpu_selftest/isolation/probe.py lib/gpu_selftest/quick/device_nodes.py "
        "src/ci/runners/daemon/leases.py"
    ),
    "a reset, which only NVIDIA's driver offers": (
        "lib/gpu_standalone/wording.py src/lifecycle/gpu_remediation.py src/parts/selftest.py"
    ),
    "Xids, the faults that NVIDIA's driver reports": (
        "lib/gpu_agent/fault_policy/conditions.py lib/gpu_agent/fault_policy/fault_table.py "
        "lib/gpu_selftest/quick/gpu_case.py lib/gpu_selftest/quick/gpu_checks.py "
        "lib/gpu_selftest/quick/gpu_errors.py lib/gpu_selftest/run.py"
    ),
    "the levels compute and burn-in, which need CUDA": (
        "lib/gpu_selftest/burnin/checks.py lib/gpu_selftest/burnin/level.py "
        "lib/gpu_selftest/compute/answers.py lib/gpu_selftest/compute/floors.py "
        "lib/gpu_selftest/compute/level.py"
    ),
    "the label `cuda`, which workflows ask for": "src/ci/runners/labels.py",
    "programs of NVIDIA on the host, by the names of their files": (
        "lib/gpu_agent/availability/external_processes.py src/plan/messages.py"
    ),
}


def names(path: pathlib.Path) -> collections.abc.Iterator[str]:
    """What the code of a file says: its identifiers, and its texts without docstrings."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "" if id(node) in alone else node.value
        for field in ("id", "attr", "name", "asname", "module", "arg"):
            if isinstance(word := getattr(node, field, None), str):
                yield word


def test_no_other_file_of_the_product_names_a_vendor():
    rooms = [trial.VENDORS / name for name in ("amd", "intel", "nvidia")]
    found = {
        str(path)
        for path in trial.files(trial.ROOT)
        if path.suffix == ".py"
        and path.parents[-2].name in ("lib", "src")
        and path.parent not in rooms
        and any(map(NAME.search, names(trial.ROOT / path)))
    }
    allowed = [path for paths in ALLOWED.values() for path in paths.split()]
    assert sorted(found) == sorted(allowed)


def test_a_name_in_code_is_noticed_and_one_in_a_comment_is_not(tmp_path):
    path = tmp_path / "one.py"
    for text, expected in {
        'x = "amd"': True,
        "from vendors import intel": True,
        "x.amdgpu_thing = 1": True,
        "def of_nvidia(): pass": True,
        '"""Of AMD."""\n# Of Intel.\nx = 1': False,
        "damde = 'intelligent'": False,
    }.items():
        path.write_text(text)
        assert any(map(NAME.search, names(path))) == expected, text


def test_a_further_vendor_is_one_of_them(tmp_path):
    trial.make(tmp_path)
    trial.add(tmp_path, trial.VENDOR)
    trial.check(tmp_path, "checks.py")
