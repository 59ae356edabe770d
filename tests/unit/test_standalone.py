# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-ci-agent without a machine: the choice of GPUs, its refusals, its words for Juju's."""

import ast
import dataclasses
import pathlib
import re

import pytest

from gpu_agent.diagnosis import driver_states, states, toolkit_states
from gpu_agent.diagnosis.facts import Facts, Kind, Options
from gpu_agent.diagnosis.states import Finding
from gpu_agent.gpu_run.service import GpuRunError
from gpu_agent.model import errors
from gpu_agent.model.host import Driver, Machine
from gpu_agent.model.inventory import Gpu, Inventory, MigDevice, State
from gpu_agent.runtime.nvidia_config import ConfigError
from gpu_standalone import owner, start
from gpu_standalone.settings import Settings
from gpu_standalone.wording import without_juju

LIB = pathlib.Path(__file__).parents[2] / "lib"


def gpu(index, **values):
    uuid = f"GPU-0000000{index}-1111-2222-3333-444444444444"
    return Gpu(index, uuid, "nvidia", "NVIDIA L4", 23034, f"0000:0{index}:00.0", index, **values)


GPUS = (gpu(0), gpu(1), gpu(2))


def chosen(*ids, gpus=GPUS, count=1):
    said = []
    found = start.chosen(Settings(gpu_device_ids=ids, gpus_per_task=count), gpus, said.append)
    return [one.index for one in found], said


def test_gpus_are_chosen_by_index_uuid_and_address():
    assert chosen() == ([0, 1, 2], [])
    assert chosen("2", GPUS[0].uuid.upper()) == ([0, 2], [])
    assert chosen("0000:01:00.0", "1") == ([1], [])


def test_a_chosen_gpu_that_is_gone_is_told_and_the_others_are_handed_out():
    found, said = chosen("1", "7")
    assert found == [1]
    assert len(said) == 1
    assert said[0].startswith('Warning: "gpu-device-ids": no GPU 7 on this machine, which has 0 (')


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"ids": ("7", "8")},
            "no GPU 7, 8 on this machine, which has 0 \\(GPU-.*Name some of these",
        ),
        ({"count": 4}, '"gpus-per-task" is 4, and 3 can be handed out: use 3 or less'),
        (
            {"gpus": (gpu(0), gpu(1, mig_enabled=True))},
            "GPU 1 is in MIG mode without MIG devices: create them",
        ),
    ],
)
def test_what_cannot_be_handed_out_is_refused_with_the_remedy(asked, said):
    with pytest.raises(start.StartError, match=said):
        chosen(*asked.pop("ids", ()), **asked)


def test_mig_devices_count():
    sliced = gpu(0, mig_enabled=True, mig=(MigDevice("MIG-1", "1g"), MigDevice("MIG-2", "1g")))
    assert chosen(gpus=(sliced,), count=2) == ([0], [])


def test_gpus_of_requests_are_closed_if_nothing_can_use_them():
    wrong = Finding("No runc on this machine", "install the package runc", "runc-missing")
    found = dict(start.unusable(("GPU-a", "GPU-b"), GPUS, wrong))
    assert {uuid: cause.reason for uuid, cause in found.items()} == {
        "GPU-a": "No runc on this machine",
        "GPU-b": "No runc on this machine",
    }


def test_a_lost_gpu_and_one_without_mig_devices_are_closed():
    gpus = (gpu(0), gpu(1, mig_enabled=True))
    found = start.unusable((gpus[0].uuid, gpus[1].uuid, "GPU-lost"), gpus, None)
    assert [uuid for uuid, _ in found] == [gpus[1].uuid, "GPU-lost"]


class Rig:
    """What `start` asks and changes: the calls in their order, each of which may fail."""

    def __init__(self, **fails):
        self.calls = []
        self.fails = fails

    def __call__(self, name, answer=None):
        def call(*_, **__):
            self.calls.append(name)
            if name in self.fails:
                raise self.fails[name]
            return answer

        return call

    def start(self):
        inventory = Inventory(State.READY, GPUS, vendor="nvidia")
        steps = start.Steps(
            detect=self("detect", inventory),
            machine=self("machine", Machine("x86_64")),
            look=self("look"),
            hand_out=self("hand_out", answer=False),
            **{
                name: self(name)
                for name in ("schedule", "reopen", "watch", "test", "register", "serve_gpu_run")
            },
        )
        return start.start(Settings(), lambda _: None, steps)


def test_start_hands_out_and_sets_up_all_parts():
    rig = Rig()
    assert rig.start() == start.Started(GPUS, None)
    assert rig.calls == [
        *("detect", "machine", "look", "schedule", "hand_out", "reopen"),
        *("watch", "test", "register", "serve_gpu_run"),
    ]


@pytest.mark.parametrize("asked", ["detect", "machine", "look"])
@pytest.mark.parametrize("error", [errors.unknown("no memory"), OSError("no memory")])
def test_nothing_changes_while_the_state_of_the_machine_is_unknown(asked, error):
    rig = Rig(**{asked: error})
    with pytest.raises(type(error), match="no memory"):
        rig.start()
    # As in a hook of the charm: no GPU is opened, and none that is handed out is closed.
    assert rig.calls[-1] == asked
    assert set(rig.calls) <= {"detect", "machine", "look"}


@pytest.mark.parametrize("part", ["watch", "test", "register", "serve_gpu_run"])
def test_a_part_that_fails_keeps_no_other_part_from_its_setup(part):
    rig = Rig(**{part: GpuRunError("no group")})
    with pytest.raises(start.StartError, match=r"^no group$"):
        rig.start()
    assert rig.calls[-4:] == ["watch", "test", "register", "serve_gpu_run"]


def test_without_the_gpu_runtime_no_gpu_is_opened_and_the_health_service_runs():
    rig = Rig(hand_out=ConfigError("config.toml is damaged"), watch=OSError("no space"))
    with pytest.raises(start.StartError, match=r"^config.toml is damaged\nno space$"):
        rig.start()
    assert rig.calls[-2:] == ["hand_out", "watch"]


# A remedy of the agent or the self-test, and what it is without Juju.
WORDS = (
    ("juju run worker/0 gpu-selftest", "sudo gpu-ci-agent self-test"),
    (
        "then `juju run worker/0 gpu-selftest level=burn-in gpu=GPU-1`.",
        "then `sudo gpu-ci-agent self-test --level burn-in --gpu GPU-1`.",
    ),
    (
        'run `juju run <unit> gpu-uncordon gpu={index} reason="new card"`',
        'run `sudo gpu-ci-agent uncordon --gpu {index} --reason "new card"`',
    ),
    (
        "juju config app gpu-vendor=auto; or",
        "set gpu-vendor to auto in /etc/gpu-ci/agent.json; or",
    ),
    ("juju config app enable-gpu=false", "sudo gpu-ci-agent remove"),
    ("install it, or juju config app gpu-driver=auto", "install it"),
    (
        "the proxies (`juju model-config juju-https-proxy`)",
        "the proxies (`https_proxy in /etc/environment`)",
    ),
    (
        "juju config app minimums=cpus=4,memory=8GiB; then",
        "set minimums to cpus=4,memory=8GiB in /etc/gpu-ci/agent.json; then",
    ),
    ("juju config app minimums=", "empty minimums in /etc/gpu-ci/agent.json"),
    ("Reboot (`juju ssh worker/0 sudo reboot`)", "Reboot (`sudo reboot`)"),
    (
        "when gpu-selftest level=quick passes, or by gpu-uncordon",
        "when sudo gpu-ci-agent self-test --level quick passes, or by sudo gpu-ci-agent uncordon",
    ),
    ("see juju status", "see sudo gpu-ci-agent status"),
    ("reboot the machine", "reboot the machine"),
)
# Texts that no machine without Juju shows: the charm's driver is not there, nor its options.
ELSEWHERE = re.compile(
    r"upgrade-driver|auto-reboot=|gpu-driver=|nvidia-container-toolkit-version="
)


@pytest.mark.parametrize(("text", "meant"), WORDS)
def test_commands_of_juju_become_those_of_this_machine(text, meant):
    assert without_juju(text) == meant


def texts(node):
    """The texts of a module, with a word for each value in them; without docstrings."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(one.value if isinstance(one, ast.Constant) else "x" for one in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield re.sub(r"\{\w+\}", "x", node.value)
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def test_no_remedy_of_lib_names_juju_without_it():
    found = {
        text
        for package in ("gpu_agent", "gpu_selftest")
        for path in (LIB / package).rglob("*.py")
        for text in texts(ast.parse(path.read_text()))
        if re.search(r"\bjuju (run|config|ssh|attach|model|status)", text)
        and not ELSEWHERE.search(text)
        # What follows comes from Settings.minimums, as in WORDS.
        and not re.search(r"juju config x( x)?$", text)
    }
    assert len(found) > 20
    left = {text: without_juju(text) for text in found if "juju" in without_juju(text)}
    assert left == {}


# Texts that no user of the agent meets, by the file or folder, and why. The tables of diagnosis
# have columns for the charm's docs; the others are tested below.
OF_THE_CHARM = {
    "gpu_agent/diagnosis/": "The tables, and reboots by the charm.",
    "gpu_agent/engines/docker/": "Docker beside Concourse.",
    "gpu_agent/gpu/vendors/nvidia/driver_packages.py": "The driver's packages, which it installs.",
    "gpu_agent/health/charm_notifier.py": "It wakes the charm.",
    "gpu_agent/health/idle_notifier.py": "The same.",
    "gpu_agent/reporting/notifier/": "The same.",
    "gpu_agent/templates/gpu-ci-devices.service": "The same.",
    "gpu_agent/templates/gpu-ci-wake.service": "The same.",
    "gpu_standalone/owner.py": "A machine of the charm.",
    "machine/download.py": "It downloads releases of the CI system.",
}
# "application" of `juju config <application>` goes with the command.
CHARM = re.compile(r"\b(the|this) charm\b|\bapplication\b(?!')", re.IGNORECASE)


def told():
    """Each text of lib with its file: of modules without docstrings, of templates their texts."""
    for path in sorted(LIB.rglob("*")):
        name = str(path.relative_to(LIB))
        if path.suffix == ".py":
            yield from ((name, text) for text in texts(ast.parse(path.read_text())))
        elif path.parent.name == "templates" and path.is_file():
            lines = path.read_text().splitlines()
            # Comments below the first lines explain the file to its authors.
            yield from ((name, one) for one in lines if "changes are lost" in one)
            yield from ((name, one) for one in lines if not one.startswith(("#", '.\\"')))


def test_no_text_of_lib_names_the_charm_without_it():
    found = {(name, text) for name, text in told() if CHARM.search(without_juju(text))}
    # The key of a table's placeholder.
    left = {(name, text) for name, text in found if text != "application"}
    assert {one for one in left if not one[0].startswith(tuple(OF_THE_CHARM))} == set()
    needed = {entry for entry in OF_THE_CHARM if any(name.startswith(entry) for name, _ in left)}
    assert needed == set(OF_THE_CHARM)


FACTS = Facts(
    Inventory(State.NO_DRIVER, vendor="nvidia"),
    owner.NAME,
    Options(
        gpu_vendor="auto",
        gpu_driver="none",
        may_reboot=False,
        toolkit_version="",
        allow_vulnerable_toolkit=False,
    ),
)


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in (*driver_states.TABLE, *toolkit_states.TABLE)
        # The agent has no option for the version of the toolkit.
        if row.kind is Kind.BLOCKS and row.code not in toolkit_states.OF_AN_OPTION
    ],
    ids=lambda row: row.code,
)
def test_no_state_of_the_machine_names_the_charm_or_an_option_without_it(row):
    drivers = [Driver(version="580.65.06", branch="580-server")]
    # A driver to change for that of another branch is here, and the agent has not installed it.
    drivers += [Driver()] if "{other_branch}" not in row.remedy else []
    for driver in drivers:
        facts = dataclasses.replace(FACTS, driver=driver)
        said = without_juju(str(states._obstacle(row, facts)))
        assert not re.search(r"\bcharm\b|juju|gpu-driver|auto-reboot|toolkit-version", said)
