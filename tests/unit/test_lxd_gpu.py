# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""scripts/lxd-gpu: which cards a unit gets, what is refused in words, and what stays as it was.

Juju and LXD are stand-ins here; tests/functional/test_lxd_gpu.py has the real LXD.
"""

import pytest

from tests.unit import lxd_host
from tests.unit.lxd_host import ONE, THREE, TWO, VGA, Host, card, name, ours

ALL_CARDS = {"type": "gpu"}


@pytest.fixture(scope="module")
def script():
    with lxd_host.loaded() as (script, _):
        yield script


@pytest.fixture
def call(script, capsys):
    """Run the command for a host; answers exit status and everything it said."""

    def call(host, *arguments, answer="y"):
        host.answer = answer
        status = script.main(host, ["worker", *arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    return call


def test_cards_are_divided_and_a_second_run_changes_nothing(call):
    host = Host(units=2, cards=(ONE, TWO, THREE))
    assert call(host)[0] == 0
    assert (host.has(0), host.has(1)) == ([ONE, TWO], [THREE])
    assert host.instances["juju-abcdef-1"]["devices"] == {name(THREE): ours(THREE)}
    host.asked.clear()
    status, said = call(host, answer="it must not ask")
    assert (status, host.asked) == (0, [])
    assert "Nothing to do" in said
    assert f"GPU 2  {THREE}  NVIDIA L4, driver nvidia: worker/1" in said


def test_a_new_unit_gets_its_share_of_what_the_others_have(call):
    host = Host(units=1)
    call(host)
    assert host.has(0) == [ONE, TWO]
    host = grown(host)
    status, said = call(host)
    assert (status, host.has(0), host.has(1)) == (0, [ONE], [TWO])
    # Never both at a time.
    assert [verb for verb, *_ in host.asked] == ["remove", "add"]
    assert "keeps it to its end" in said


def grown(host):
    """The same host with one unit more."""
    more = Host(units=len(host.units) + 1)
    for one in host.instances.values():
        more.instances[one["name"]] = one
    return more


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [("1", [TWO]), ("0,1", [ONE, TWO]), (ONE, [ONE]), ("02:00.0, 0", [ONE, TWO])],
)
def test_named_cards_and_no_others(call, gpus, expected):
    host = Host()
    host.instances["juju-abcdef-0"]["devices"] = {name(ONE): ours(ONE)}
    assert call(host, "--gpus", gpus)[0] == 0
    assert sorted(host.has()) == expected


def test_only_what_it_has_put_is_undone(call):
    host = Host(units=2)
    disk = {"root": {"type": "disk", "path": "/"}}
    host.instances["juju-abcdef-0"]["devices"] |= disk
    call(host)
    host.settings["enable-gpu"] = False
    host.cards = []
    assert call(host, "--undo")[0] == 0
    assert [host.instances[f"juju-abcdef-{n}"]["devices"] for n in (0, 1)] == [disk, {}]
    assert "Nothing to do" in call(host, "--undo")[1]


def test_a_card_for_all_machines_of_the_model_to_come(call):
    host = Host()
    host.instance("juju-abcdef-9")
    status, said = call(host, "--profile", "--gpus", "1")
    assert status == 0
    assert host.profiles["juju-ci-abcdef"] == {name(TWO): ours(TWO)}
    assert "All machines of the model" in said
    assert "Nothing to do" in call(host, "--profile", "--gpus", "1")[1]
    # What all have can't be divided.
    status, said = call(host)
    assert (status, "remove it first" in said, "--profile --undo" in said) == (1, True, True)
    assert call(host, "--profile", "--undo")[0] == 0
    assert host.profiles == {"default": {}, "juju-ci-abcdef": {}, "juju-ci-worker-0": {}}


@pytest.mark.parametrize("profile", ["juju-ci", "juju-ci-0123456789ab"])
def test_the_models_profile_is_found_before_juju_4_and_since(call, profile):
    host = Host()
    host.profiles = {"default": {}, "juju-ci-worker-12": {}, profile: {}}
    host.instance("juju-abcdef-0")
    assert call(host, "--profile", "--gpus", "0")[0] == 0
    assert list(host.profiles[profile]) == [name(ONE)]


def test_held_cards_are_left_where_they_are(call):
    host = Host(cards=(ONE, TWO, THREE))
    host.instance("games", devices={"gpu": {"type": "gpu", "pci": "01:00.0"}}, profiles=[])
    host.instance("far", devices={"x": {"type": "gpu", "id": "1"}}, profiles=[], project="p")
    status, said = call(host)
    assert (status, host.has()) == (0, [THREE])
    assert f"{ONE}  NVIDIA L4, driver nvidia: games" in said
    status, said = call(host, "--gpus", "0,2")
    assert (status, f"GPU {ONE} is held by games" in said) == (1, True)
    assert call(host, "--gpus", "0,2", "--share")[0] == 0
    assert sorted(host.has()) == [ONE, THREE]


def test_all_units_use_the_same_cards_where_that_is_said(call):
    host = Host(units=3)
    status, said = call(host)
    assert (status, "3 units want a GPU and 2 can be given" in said) == (1, True)
    assert call(host, "--share")[0] == 0
    assert [host.has(unit) for unit in range(3)] == [[ONE, TWO]] * 3


def test_what_stopped_halfway_is_gone_on_with(call):
    host = Host()
    host.broken = name(TWO)
    status, said = call(host)
    assert (status, host.has()) == (1, [ONE])
    assert "lxc: Error: no\n1 of 2 done: run this again to continue\n" in said
    host.broken = ""
    assert call(host)[0] == 0
    assert host.asked == [("add", "juju-abcdef-0", name(card)) for card in (ONE, TWO, TWO)]


def test_a_device_of_ours_that_is_not_as_it_should_be_is_made_anew(call):
    host = Host()
    host.instances["juju-abcdef-0"]["devices"] = {name(ONE): {"type": "gpu", "pci": ONE}}
    call(host, "--gpus", "0")
    assert host.instances["juju-abcdef-0"]["devices"] == {name(ONE): ours(ONE)}


def test_amds_cards_come_with_kfd(call):
    host = Host(cards=())
    host.cards = [card(ONE, "1002", "amdgpu")]
    call(host)
    devices = host.instances["juju-abcdef-0"]["devices"]
    # Without ROCm's part of the driver there is none; a container must start all the same.
    kfd = {"type": "unix-char", "source": "/dev/kfd", "mode": "0666", "required": "false"}
    assert devices == {name(ONE): ours(ONE), "gpuci-kfd": kfd}


def test_nothing_is_done_unasked(call):
    host = Host()
    status, said = call(host, "--dry-run")
    assert (status, host.asked) == (0, [])
    assert f"  lxc config device add juju-abcdef-0 {name(ONE)} gpu gputype=physical " in said
    for answer in ("", "n"):
        status, said = call(host, answer=answer)
        assert (status, host.asked, "nothing was changed" in said) == (1, [], True)
    assert call(host, "--yes", answer="it must not ask")[0] == 0


def test_wrong_use_is_a_status_of_its_own(script):
    for arguments in ([], ["worker", "--undo", "--gpus", "0"], ["worker", "--undo", "--share"]):
        with pytest.raises(SystemExit) as ended:
            script.main(Host(), arguments)
        assert ended.value.code == 2


def without(part):
    return lambda host: part(host).clear()


def with_settings(**settings):
    return lambda host: host.settings.update({k.replace("_", "-"): v for k, v in settings.items()})


def with_instance(**more):
    return lambda host: host.instances["juju-abcdef-0"].update(more)


def in_container(host):
    host.units["worker/0"]["machine"] = "0/lxd/1"
    inner = {"0/lxd/1": {"instance-id": "juju-abcdef-0-lxd-1"}}
    host.machines["0"] = {"instance-id": "node7", "containers": inner}


def with_twin(host):
    """Somebody who has a project of this LXD names an instance as Juju's; LXD lists it first."""
    mine = host.instances["juju-abcdef-0"]
    twin = {**mine, "project": "a-user-1001", "devices": {}}
    host.instances = {"twin": twin, **host.instances}


@pytest.mark.parametrize(
    ("change", "arguments", "expected"),
    [
        (with_twin, ["--yes"], "the projects a-user-1001, default have an instance of that name"),
        (with_instance(config={}), [], "project default was not made by Juju for this model"),
        (
            with_instance(config={"user.juju-model-uuid": "another"}, project="a-user-1001"),
            ["--yes"],
            "project a-user-1001 was not made by Juju for this model",
        ),
        (without(lambda host: host.units), [], "worker has no units: juju add-unit worker"),
        (without(lambda host: host.instances), [], "juju-abcdef-0, which this LXD does not have"),
        (without(lambda host: host.machines), [], "worker/0 has no machine yet"),
        (without(lambda host: host.settings), [], "not the charm gpu-ci-worker"),
        (in_container, [], "in container juju-abcdef-0-lxd-1 of machine 0, which has another LXD"),
        (with_settings(enable_gpu=False), [], "juju config worker enable-gpu=true"),
        (with_settings(deployment_mode="web"), [], "worker runs no tasks"),
        (
            with_settings(gpu_vendor="amd"),
            [],
            f"(gpu-vendor=amd); the GPUs that LXD sees (lxc query /1.0/resources):\n  {ONE}",
        ),
        (without(lambda host: host.cards), [], "(lxc query /1.0/resources): none"),
        (lambda host: setattr(host, "cards", [VGA]), [], "0000:05:00.0  device 2000, driver ast"),
        (with_instance(type="virtual-machine"), [], "juju-abcdef-0, a virtual machine"),
        (with_instance(location="there"), [], "on cluster member there: run this there"),
        (
            with_instance(devices={"gpu0": ALL_CARDS}),
            [],
            "lxc config device remove juju-abcdef-0 gpu0",
        ),
        (
            lambda host: host.profiles["default"].update(g=ALL_CARDS),
            [],
            "lxc profile device remove PROFILE g",
        ),
        (
            lambda host: host.units.update({"worker/1": {"machine": "0"}}),
            [],
            "both in juju-abcdef-0",
        ),
        (
            with_instance(profiles=["default"]),
            ["--profile"],
            "has no profile of model ci, only: default",
        ),
        (
            lambda host: None,
            ["--gpus", "2"],
            f"--gpus: there is no GPU '2'. Available:\n  0  {ONE}",
        ),
        (lambda host: None, ["--gpus", "0000:09:00.0"], "there is no GPU '0000:09:00.0'"),
        (lambda host: None, ["--gpus", "0,gpu1"], "there is no GPU 'gpu1'"),
        (lambda host: None, ["--gpus", f"0,{ONE}"], f"GPU {ONE} is named twice"),
    ],
)
def test_wrong_use_is_refused_in_words(call, change, arguments, expected):
    host = Host()
    change(host)
    status, said = call(host, *arguments)
    assert expected in said
    assert (status, host.asked) == (1, [])


def test_container_in_a_machine_of_this_host_is_the_models_too(call):
    host = Host()
    host.instances["juju-abcdef-0"]["config"] = {"user.juju-model": lxd_host.UUID}
    assert call(host)[0] == 0
    assert host.has()


def test_another_application_and_two_units_on_one_profile_are_refused(call, script, capsys):
    host = Host(units=2)
    assert "worker has 2 units, which would all use" in call(host, "--profile")[1]
    assert script.main(host, ["workers"]) == 1
    said = "lxd-gpu: model ci has no application workers; its applications: web, worker\n"
    assert capsys.readouterr().err == said
    assert not host.asked


def test_what_is_missing_here_is_told_and_so_is_an_error(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.main(script.Host(), ["worker"]) == 1
    assert "juju is not installed here: run this on the LXD host" in capsys.readouterr().err
    (tmp_path / "juju").write_text("#!/bin/sh\necho 'ERROR no model' >&2; exit 1\n")
    (tmp_path / "juju").chmod(0o755)
    assert script.main(script.Host(), ["worker", "-m", "no such"]) == 1
    assert capsys.readouterr().err == (
        "lxd-gpu: juju status --model 'no such' --format json: ERROR no model\n"
    )
