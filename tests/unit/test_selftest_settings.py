# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test knows of its unit comes back as it was written."""

import json

import pytest

from gpu_agent.model.inventory import Vendor
from gpu_selftest import settings
from gpu_selftest.settings import Settings
from tests.unit.situations import gpu, sliced

NODES = ("/dev/kfd", "/dev/dri/renderD128")


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "PATH", tmp_path / "gpu-ci" / "selftest.json")
    return settings.PATH


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
        ),
        Settings("worker/0", vendor="amd", gpus=(gpu(0, vendor=Vendor.AMD, nodes=NODES),)),
    ],
)
def test_settings_survive_the_disk(given, path):
    assert settings.write(given)
    assert settings.read() == given
    assert not settings.write(given)
    assert path.stat().st_mode & 0o777 == 0o644


def test_without_any_there_is_none():
    assert settings.read() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: {**kept, "of_a_later_charm": 1},
        lambda kept: {name: value for name, value in kept.items() if name != "gpus"},
        lambda kept: {**kept, "gpus": [{**kept["gpus"][0], "of_a_later_charm": 1}]},
        lambda kept: {**kept, "gpus": [{**kept["gpus"][0], "vendor": "4dfx"}]},
        lambda kept: {**kept, "gpus": 7},
        lambda kept: [kept],
    ],
)
def test_those_of_another_version_are_as_good_as_none_and_are_replaced(change, path):
    given = Settings("worker/0", gpus=(gpu(0),))
    settings.write(given)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    assert settings.read() is None
    assert settings.write(given)
    assert settings.read() == given


@pytest.mark.parametrize("content", [b"", b"\0" * 80, b'{"unit": "wor', b"\xff{}"])
def test_damaged_ones_are_as_good_as_none(content, path):
    settings.write(Settings("worker/0"))
    path.write_bytes(content)
    assert settings.read() is None
