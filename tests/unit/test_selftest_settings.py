# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What the self-test knows of its unit comes back as it was written."""

import pytest

from gpu.inventory import Vendor
from selftest import settings
from selftest.settings import Settings
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
            driver_capabilities="all",
            min_gpu_memory_gib=16,
            min_compute_capability="7.0",
            min_driver_version="580.65.06",
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
