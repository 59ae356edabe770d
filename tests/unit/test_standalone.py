# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-ci-agent without a machine: the choice of GPUs, its refusals, its words for Juju's."""

import ast
import pathlib
import re

import pytest

from gpu_agent.diagnosis.states import Finding
from gpu_agent.model.inventory import Gpu, MigDevice
from gpu_standalone import __main__ as command
from gpu_standalone import start
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


def test_a_part_that_fails_keeps_no_other_part_from_its_setup():
    done = []

    def fail():
        raise OSError("no group")

    with pytest.raises(start.StartError, match="no group"):
        start.each(fail, lambda: done.append("health service"))
    assert done == ["health service"]


def test_only_an_installed_copy_that_was_replaced_is_outdated(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "current").symlink_to("new")
    assert command.is_outdated(tmp_path / "old", tmp_path)
    assert not command.is_outdated(tmp_path / "new", tmp_path)
    assert not command.is_outdated(pathlib.Path("/srv/tree"), tmp_path)


@pytest.mark.parametrize("words", [[], ["halt"], ["uncordon", "--gpu", "1"], ["self-test", "-l"]])
def test_wrong_arguments_end_with_the_usage(words, capsys):
    with pytest.raises(SystemExit) as raised:
        command.main(words)
    assert raised.value.code == command.WRONG_USE
    assert capsys.readouterr().err.startswith("usage: gpu-ci-agent")


def test_a_user_who_is_not_root_is_told_to_use_sudo(monkeypatch, capsys):
    monkeypatch.setattr(command.os, "geteuid", lambda: 1000)
    assert command.main(["remove"]) == command.WRONG_USE
    assert capsys.readouterr().err == "gpu-ci-agent: this needs root: use sudo\n"


def test_a_machine_without_systemd_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command.os, "geteuid", lambda: 0)
    monkeypatch.setattr(command, "_SYSTEMD", tmp_path / "none")
    assert command.main(["status"]) == command.WRONG_USE
    assert capsys.readouterr().err.startswith("gpu-ci-agent: systemd does not run this machine: ")


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
