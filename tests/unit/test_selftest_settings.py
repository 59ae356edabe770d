# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test knows of its unit comes back as it was written."""

import json

import pytest

from gpu_selftest import settings
from gpu_selftest.settings import Settings
from tests.unit.situations import gpu, sliced

NODES = ("/dev/kfd", "/dev/dri/renderD128")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gpu-ci" / "selftest.json"


@pytest.mark.parametrize(
    "given",
    [
        Settings("worker/0"),
        Settings(
            "gpu-workers/12",
            vendor="nvidia",
            gpus=(gpu(0), sliced(3, "1g.10gb", "2g.20gb")),
            allocation="shared",
            min_gpu_memory_gib=16,
            min_compute_capability="7.0",
            min_driver_version="580.65.06",
            min_cpus=4,
            min_memory_gib=16,
            files={"/opt/gpu-ci/bin/runc": "file 755 0:0 sha256:00"},
            wheels="/var/lib/juju/agents/unit-worker-0/resources/selftest-wheels/wheels.tar",
            programs=("/opt/gpu-ci/bin/launcher",),
            runc="/opt/ci/runc",
            runc_remedy="unpack it",
            checks=("-m", "ci.checks"),
            disks=("/srv/ci", "/srv/more"),
        ),
        Settings("worker/0", vendor="amd", gpus=(gpu(0, vendor="amd", nodes=NODES),)),
    ],
)
def test_settings_survive_the_disk(given, path):
    assert settings.write(given, path)
    assert settings.read(path) == given
    assert not settings.write(given, path)
    assert path.stat().st_mode & 0o777 == 0o644


def test_without_any_there_is_none(path):
    assert settings.read(path) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: {**kept, "of_a_later_charm": 1},
        lambda kept: {name: value for name, value in kept.items() if name != "gpus"},
        lambda kept: {**kept, "gpus": [{**kept["gpus"][0], "of_a_later_charm": 1}]},
        lambda kept: {**kept, "gpus": [{**kept["gpus"][0], "vendor": "4dfx"}]},
        lambda kept: {**kept, "vendor": "4dfx"},
        lambda kept: {**kept, "vendor": ["nvidia"]},
        lambda kept: {**kept, "gpus": 7},
        lambda kept: {**kept, "version": 2},
        lambda kept: {**kept, "version": "1"},
        lambda kept: {**kept, "checks": "-m"},
        lambda kept: {**kept, "checks": ["-m", 7]},
        lambda kept: {**kept, "disks": None},
        lambda kept: {**kept, "runc": None},
        lambda kept: {**kept, "auto_reboot": "yes"},
        lambda kept: {**kept, "min_cpus": True},
        lambda kept: [kept],
    ],
)
def test_those_of_another_version_are_as_good_as_none_and_are_replaced(change, path):
    given = Settings("worker/0", gpus=(gpu(0),))
    settings.write(given, path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert settings.read(path) is None
    assert settings.write(given, path)
    assert settings.read(path) == given


def test_those_of_the_revision_before_are_read_with_its_runc(path):
    """As in a boot after a refresh that was killed before it wrote them anew."""
    settings.write(Settings("worker/0", gpus=(gpu(0),), files={"/x": "file"}), path)
    found = json.loads(path.read_text())
    for name in ("version", "programs", "runc", "runc_remedy", "checks", "disks"):
        del found[name]
    path.write_text(json.dumps(found))
    kept = settings.read(path)
    assert (kept.gpus, kept.files) == ((gpu(0),), {"/x": "file"})
    assert (kept.runc_path(), kept.checks, kept.disks) == (
        "/opt/concourse/current/bin/runc", (), (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ((), "/usr/bin/runc"),
        (("usr/sbin/runc",), "/usr/sbin/runc"),
        (("usr/sbin/runc", "usr/bin/runc"), "/usr/bin/runc"),
    ],
)
def test_a_machine_without_a_ci_system_has_its_own_runc(there, found, tmp_path):
    for name in there:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert Settings("worker/0").runc_path(tmp_path) == found
    assert Settings("worker/0", runc="/opt/ci/runc").runc_path(tmp_path) == "/opt/ci/runc"


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b'{"unit": "wor', b"\xff{}"])
def test_damaged_ones_are_as_good_as_none(content, path):
    settings.write(Settings("worker/0"), path)
    path.write_bytes(content)
    assert settings.read(path) is None
