# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The charm's yaml files, its lock files and its icon: form, and agreement with the code."""

import ast
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import pytest
import yaml

from actions import dispatch as actions
from ci.concourse.actions import CHANGING, Actions
from ci.concourse.worker import worker

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LOCKS = sorted(ROOT.glob("requirements*.txt"))
INCLUDED = r"^-r (requirements-[a-z]+\.txt)$"


def load(name):
    return yaml.safe_load((ROOT / name).read_text())


METADATA = load("metadata.yaml")
OPTIONS = load("config.yaml")["options"]
ACTIONS = load("actions.yaml")
ENDPOINTS = {
    name: endpoint
    for role in ("provides", "requires", "peers")
    for name, endpoint in METADATA[role].items()
}


def string_constants(*folders):
    return {
        node.value
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name):
    option = OPTIONS[name]
    assert KEBAB.fullmatch(name)
    assert set(option) <= {"type", "default", "description"}
    assert len(option["description"].split()) >= 5
    types = {"string": str, "int": int, "boolean": bool}
    if option["type"] == "secret":
        assert "default" not in option
    else:
        assert type(option["default"]) is types[option["type"]]


@pytest.mark.parametrize("name", ACTIONS)
def test_action(name):
    action = ACTIONS[name]
    assert KEBAB.fullmatch(name)
    assert action["additionalProperties"] is False
    assert len(action["description"].split()) >= 5
    assert all(KEBAB.fullmatch(param) for param in action.get("params", {}))


def test_each_action_has_a_handler_and_each_handler_an_action():
    concourse = Actions(None, None, None)
    assert {*actions.ALL, *concourse.by_name} == set(ACTIONS)
    assert not actions.ALL.keys() & concourse.by_name
    assert {*ACTIONS} > actions.CHANGING | CHANGING


@pytest.mark.parametrize("name", ENDPOINTS)
def test_endpoint(name):
    assert KEBAB.fullmatch(name)
    assert isinstance(ENDPOINTS[name]["optional"], bool)
    assert ENDPOINTS[name]["description"]
    assert name in string_constants("src/relations"), "no code speaks over this endpoint"


def test_endpoints_and_interfaces_are_the_documented_ones():
    assert {name: endpoint["interface"] for name, endpoint in ENDPOINTS.items()} == {
        "web-tsa": "concourse-tsa",
        "tsa": "concourse-ci_tsa",
        "cos-agent": "cos_agent",
        "worker-tsa": "concourse-tsa",
        "flight": "concourse-ci_tsa",
        "certificates": "tls-certificates",
        "postgresql": "postgresql_client",
        "peers": "gpu-ci-worker_peers",
    }
    limits = {name: METADATA["requires"][name]["limit"] for name in METADATA["requires"]}
    assert limits == {"worker-tsa": 1, "flight": 1, "postgresql": 1, "certificates": 1}


def test_metadata():
    assert METADATA["name"] == "gpu-ci-worker"
    assert METADATA["assumes"] == ["juju >= 3.6"]
    assert set(METADATA["resources"]) == {"concourse", "runner", "selftest-wheels"}
    assert METADATA["resources"]["concourse"]["type"] == "file"
    assert "concourse" in string_constants("src/relations")
    assert METADATA["storage"]["data"]["location"] == str(worker.HOME)
    for key in ("display-name", "summary", "description", "maintainers"):
        assert METADATA[key]


def test_charmcraft_lists_both_bases_on_both_architectures():
    charmcraft = load("charmcraft.yaml")
    assert set(charmcraft["platforms"]) == {
        f"ubuntu@{base}:{architecture}"
        for base in ("22.04", "24.04")
        for architecture in ("amd64", "arm64")
    }
    # charmcraft drops these without a word where metadata.yaml exists.
    assert set(charmcraft) == {"type", "platforms", "parts"}


def test_lxd_profile_gives_no_unit_a_gpu_by_itself():
    profile = load("lxd-profile.yaml")
    assert profile["config"] == {"security.nesting": "true"}
    assert not profile.get("devices")


def pins(text):
    """Package name to the versions pinned for it: several where they depend on the Python."""
    found = {}
    for name in re.findall(INCLUDED, text, re.MULTILINE):
        found |= pins((ROOT / name).read_text())
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(name.lower(), []).append(version)
    return found


def lock_faults(text):
    """Packages without a pinned version or a hash, and lines that name an address or an option."""
    faults = []
    # A lock file of this tree is checked by itself.
    for entry in re.split(r"\n(?!\s)", re.sub(INCLUDED, "", text, flags=re.MULTILINE).strip()):
        first = entry.splitlines()[0]
        if not re.match(r"[A-Za-z0-9._-]+==[0-9]", entry):
            faults.append(f"not pinned: {first}")
        elif not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry):
            faults.append(f"no hash: {first}")
        if "://" in entry:
            faults.append(f"names an address: {first}")
    return faults


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock(lock):
    text = lock.read_text()
    assert lock_faults(text) == []
    asked = re.findall(
        r"^([A-Za-z0-9][A-Za-z0-9-]*)", lock.with_suffix(".in").read_text(), re.MULTILINE
    )
    assert {name.lower() for name in asked} <= set(pins(text))


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("tomlkit==1.0", "no hash"),
        (f"tomlkit>=1.0 --hash=sha256:{'0' * 64}", "not pinned"),
        ("--find-links https://example.com/simple", "names an address"),
        (f"tomlkit @ https://example.com/t.whl --hash=sha256:{'0' * 64}", "names an address"),
    ],
)
def test_lock_faults_are_noticed(entry, fault):
    good = f"ops==3.9.0 \\\n    --hash=sha256:{'a' * 64}"
    assert lock_faults(good) == []
    assert fault in " ".join(lock_faults(f"{good}\n{entry}\n"))


def test_tests_use_the_versions_that_the_charm_carries():
    tested = pins((ROOT / "requirements-dev.txt").read_text())
    carried = pins((ROOT / "requirements.txt").read_text())
    assert {name: tested[name] for name in carried} == carried


def test_icon_is_100_by_100():
    icon = ElementTree.parse(ROOT / "icon.svg").getroot()
    assert icon.tag.endswith("}svg")
    assert (icon.get("width"), icon.get("height")) == ("100", "100")


def test_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:5] == ["Apache", "License", "Version", "2.0,", "January"]
    assert "END OF TERMS AND CONDITIONS" in text
