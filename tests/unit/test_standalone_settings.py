# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""/etc/gpu-ci/agent.json: what it may say, and what is told of what it may not."""

import json
import pathlib
import re
import sys

import pytest

from gpu_standalone import settings
from gpu_standalone.settings import Minimums, Settings, SettingsError

PAGE = pathlib.Path(__file__).parents[2] / "docs/reference/agent-settings.md"
OPTIONS = PAGE.with_name("options.md")
# What is wrong, as the file has it, and what is said of it.
WRONG = (
    ({"gpu-vendor": "voodoo"}, '"gpu-vendor" is "voodoo": use auto, nvidia, amd or intel'),
    ({"gpu-device-ids": []}, '"gpu-device-ids" is []: use "all", or a list of indexes'),
    ({"gpu-device-ids": "0,1"}, '"gpu-device-ids" is "0,1": use "all", or a list'),
    ({"gpu-device-ids": [True]}, '"gpu-device-ids" is [true]: use "all", or a list'),
    ({"gpu-allocation": None}, '"gpu-allocation" is null: use exclusive or shared'),
    ({"gpus-per-task": "2"}, '"gpus-per-task" is "2": use a whole number from 0 to 128'),
    ({"gpus-per-task": True}, '"gpus-per-task" is true: use a whole number from 0 to 128'),
    ({"gpu-wait-timeout": 1801}, '"gpu-wait-timeout" is 1801: use a whole number from 0 to 1800'),
    ({"gpu-wait-timeout": "4m"}, '"gpu-wait-timeout" is "4m": use a whole number'),
    ({"gpu-for-privileged-tasks": 1}, '"gpu-for-privileged-tasks" is 1: use true or false'),
    ({"container-engines": "podman"}, '"container-engines" is "podman": use a list of podman'),
    ({"container-engines": ["lxc"]}, '"container-engines" is ["lxc"]: use a list of podman'),
    (
        {"container-engines": ["docker", "docker=default"]},
        '"container-engines" is ["docker", "docker=default"]: use a list of podman',
    ),
    ({"gpu-run-group": "a b"}, '"gpu-run-group" is "a b": use one such as "gpu-users"'),
    ({"allow-vulnerable-toolkit": "no"}, '"allow-vulnerable-toolkit" is "no": use true or false'),
    ({"selftest-on-start": 0}, '"selftest-on-start" is 0: use true or false'),
    ({"selftest-wheels": "wheels"}, '"selftest-wheels" is "wheels": use one such as "/srv/'),
    ({"minimums": "cpus=4"}, '"minimums" is "cpus=4": use an object with some of cpus, memory'),
    ({"minimums": {"cpus": -1}}, '"minimums.cpus" is -1: use a whole number from 0 to 9999'),
    ({"minimums": {"disk": 1}}, '"minimums.disk" is 1: no such setting. Use cpus, memory'),
    ({"minimums": {"driver": 535}}, '"minimums.driver" is 535: use one such as "580.65.06"'),
    ({"gpu-health": "on"}, '"gpu-health" is "on": use enabled, observe or disabled'),
    ({"quarantine-limit-percent": 0}, '"quarantine-limit-percent" is 0: use a whole number'),
    ({"gpu-metrics-port": 65536}, '"gpu-metrics-port" is 65536: use a whole number'),
    ({"enable-gpu": True}, '"enable-gpu" is true: no such setting. Use gpu-vendor, '),
    ({"gpu-run-group": "g" * 80}, f'"gpu-run-group" is "{"g" * 60}...: use one such as'),
)  # fmt: skip


def parsed(**values):
    return settings.parse(json.dumps({"version": 1, **values}))


def test_what_is_written_is_read():
    other = Settings(
        gpu_device_ids=("0", "GPU-aa"),
        container_engines=("podman=default", "docker"),
        minimums=Minimums(cpus=4, compute_capability="7.0"),
    )
    for given in (Settings(), other):
        assert settings.parse(settings.as_text(given)) == given
    assert (other.engines, other.default_engines) == (("podman", "docker"), ("podman",))


def test_a_key_that_is_missing_has_its_default():
    assert parsed() == Settings()
    assert parsed(**{"gpu-run-group": "gpu-users"}) == Settings(gpu_run_group="gpu-users")


def test_an_index_may_be_a_number():
    found = parsed(**{"gpu-device-ids": [1, "1", "0000:41:00.0"]})
    assert found.gpu_device_ids == ("1", "0000:41:00.0")


@pytest.mark.parametrize(("values", "said"), WRONG, ids=lambda one: str(one)[:40])
def test_a_wrong_value_is_told_with_file_key_value_and_remedy(values, said):
    with pytest.raises(SettingsError) as raised:
        parsed(**values)
    assert str(raised.value).startswith(f"/etc/gpu-ci/agent.json: {said}")


def test_all_wrong_values_are_told_at_once():
    with pytest.raises(SettingsError) as raised:
        parsed(**{"gpu-health": "on", "minimums": {"cpus": "x", "memory": "y"}, "more": 1})
    said = re.findall('^/etc/gpu-ci/agent.json: "(.*?)"', str(raised.value), re.M)
    assert said == ["gpu-health", "minimums.cpus", "minimums.memory", "more"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON: "),
        ("[" * 100_000, "nested too deeply. Repair it, or remove it: install writes the defaults"),
        ("[1]", "no JSON object. Remove it: install writes the defaults"),
        ("{}", '"version" is null: use 1'),
        ('{"version": true}', '"version" is true: use 1'),
        ('{"version": 0}', '"version" is 0: use 1'),
        (
            '{"version": 2, "gpu-health": 7}',
            '"version" is 2: this agent reads versions up to 1. Install the newer agent that',
        ),
    ],
)
def test_a_file_of_another_kind_or_version_is_refused(text, said):
    with pytest.raises(SettingsError) as raised:
        settings.parse(text)
    assert str(raised.value).startswith(f"/etc/gpu-ci/agent.json: {said}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["gpu-health", "container-engines", "minimums"])
def test_a_value_that_is_nested_deeply_is_refused_at_each_depth(key):
    """At some depths JSON is read, and the value is too deep to be shown."""
    for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
        for value in ("[" * depth + "]" * depth, '{"cpus": ' * depth + "1" + "}" * depth):
            with pytest.raises(SettingsError):
                settings.parse(f'{{"version": 1, "{key}": {value}}}')


def test_the_file_is_read_and_none_is_no_error(tmp_path):
    path = tmp_path / "agent.json"
    assert settings.read(path) is None
    path.write_text(settings.as_text(Settings(gpu_run_group="gpu-users")))
    assert settings.read(path) == Settings(gpu_run_group="gpu-users")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "agent.json"
    path.write_bytes(b'{"version": 1, "gpu-run-group": "\xe9"}')
    with pytest.raises(SettingsError, match=r"^/etc/gpu-ci/agent.json: no UTF-8: .*Repair it"):
        settings.read(path)


def test_the_page_has_each_key_with_its_default_and_the_options_have_these_names():
    told = dict(re.findall(r"^\| `([a-z-]+)` \| `(.*?)` \|", PAGE.read_text(), re.M))
    written = json.loads(settings.as_text(Settings()))
    flat = {**written, **{f"minimums.{key}": one for key, one in written["minimums"].items()}}
    del flat["minimums"]
    told |= dict(re.findall(r"^\| `(minimums\.[a-z-]+)` \| `(.*?)` \|", PAGE.read_text(), re.M))
    assert told == {key: json.dumps(value) for key, value in flat.items()}
    # The wheels are a resource of the charm.
    named = {key for key in written if key not in ("version", "selftest-wheels")}
    assert named <= set(re.findall(r"`([a-z-]+)`", OPTIONS.read_text()))
