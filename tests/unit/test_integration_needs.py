# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Why integration tests are skipped: the reason is of the Juju that is there."""

import json

import pytest

from tests.integration import needs


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs on PATH: each is a shell script, and there are no others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    charm = tmp_path / "gpu-ci-worker.charm"
    charm.touch()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("GPUCI_CHARM", str(charm))

    def put(name, script="exit 0"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def juju(version):
    """A juju command with a controller of this version, as `juju show-controller` shows it."""
    shown = json.dumps({"overlord": {"details": {"agent-version": version}}})
    return f"if [ $1 = show-controller ]; then echo '{shown}'; fi"


def test_without_juju_no_test_can_run(programs):
    assert needs.what_is_missing() == "there is no juju command on this machine"
    assert needs.what_is_missing_for_juju_36() == needs.what_is_missing()


def test_without_a_controller_the_reason_is_jujus_own(programs):
    programs("juju", "echo 'ERROR no controllers registered' >&2; exit 1")
    assert needs.what_is_missing() == (
        "juju has no controller here: ERROR no controllers registered"
    )


@pytest.mark.parametrize("version", ["4.0.15", "3.5.7", "3.60.0"])
def test_another_juju_is_named(programs, version):
    programs("juju", juju(version))
    programs("charmcraft")
    assert needs.what_is_missing() == ""
    assert needs.what_is_missing_for_juju_36() == (
        f"the controller runs Juju {version}, and this test is for Juju 3.6"
    )


def test_pytest_operator_wants_charmcraft(programs):
    programs("juju", juju("3.6.9"))
    assert "charmcraft" in needs.what_is_missing_for_juju_36()
    programs("charmcraft")
    assert needs.what_is_missing_for_juju_36() == ""
