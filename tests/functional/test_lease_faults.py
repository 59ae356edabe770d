# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The installed front and back end on file systems that are full or read-only."""

import json
import os
import shutil
import subprocess

import pytest

from gpu_runtime.holder_usage import Host
from tests.unit.wrapper_caller import EXECED, UUIDS, Bundle, hold
from tests.unit.wrapper_rig import GOLDEN, GPUS, Rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    rig.policy(gpus=GPUS[:1])
    return rig


@pytest.fixture
def mounted():
    """A tmpfs of so many KiB in place of a folder, until the test is over."""
    places = []

    def mount(folder, size):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k,mode=755", "tmpfs", folder]
        subprocess.run(command, check=True, timeout=30)
        places.append(folder)

    yield mount
    for folder in reversed(places):
        subprocess.run(["umount", "-l", folder], check=True, timeout=30)


def fill(folder):
    """Leave not one block free."""
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            pass


def create(rig, bundle):
    rig.log.unlink(missing_ok=True)
    return rig.call(*bundle.create)


def holders(rig):
    path = rig.store / "leases.json"
    return sorted(json.loads(path.read_text())["holders"]) if path.exists() else []


def test_a_full_store_gives_nothing_and_stops_no_get(rig, mounted):
    mounted(rig.store, 64)
    first, get = Bundle(rig, "ID"), Bundle(rig, "get")
    shutil.copy(GOLDEN / "get.json", get.config)
    before = first.config.read_bytes()
    (rig.store / "containers").mkdir()
    fill(rig.store)
    assert create(rig, first) == 1
    assert "No space left on device" in rig.refusal
    assert first.config.read_bytes() == before
    assert create(rig, get) == EXECED
    assert not holders(rig)
    (rig.store / "filler").unlink()
    assert create(rig, first) == EXECED
    assert holders(rig) == ["ID"]


def test_a_store_that_fills_up_meanwhile_gives_no_gpu_twice(rig, mounted):
    mounted(rig.store, 64)
    second = Bundle(rig, "OTHER")
    with subprocess.Popen(["sleep", "1000"]) as owner:
        hold(rig, (owner.pid, Host()._started(owner.pid)))
        fill(rig.store)
        assert create(rig, second) == 1, "it can't be written down among those who wait"
        (rig.store / "filler").unlink()
        assert create(rig, second) == 1
        assert "GPU 0 by container HOLDER" in rig.refusal
        owner.kill()
    assert create(rig, second) == EXECED
    assert holders(rig) == ["OTHER"]


def test_a_full_bundle_gives_the_gpu_to_the_next(rig, mounted):
    mounted(rig.folder / "bundles" / "FULL", 256)
    full, other = Bundle(rig, "FULL"), Bundle(rig, "OTHER")
    before = full.config.read_bytes()
    fill(full.folder)
    assert create(rig, full) == 1
    assert f"{full.config}: No space left on device. Free disk space" in rig.refusal
    assert full.config.read_bytes() == before
    assert sorted(path.name for path in full.folder.iterdir()) == ["config.json", "filler"]
    assert create(rig, other) == EXECED
    assert holders(rig) == ["OTHER"]


@pytest.mark.parametrize("what", ["store", "bundle"])
def test_what_is_read_only_is_refused_in_words(rig, mounted, what):
    folder = rig.store if what == "store" else rig.folder / "bundles" / "RO"
    mounted(folder, 256)
    bundle, get = Bundle(rig, "RO"), Bundle(rig, "get")
    shutil.copy(GOLDEN / "get.json", get.config)
    before = bundle.config.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True, timeout=30)
    assert create(rig, bundle) == 1
    assert "Read-only file system" in rig.refusal
    assert bundle.config.read_bytes() == before
    assert create(rig, get) == EXECED
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True, timeout=30)
    assert create(rig, bundle) == EXECED
    env = json.loads(bundle.config.read_text())["process"]["env"]
    assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[0]}" in env


def test_a_store_that_is_gone_is_made_again(rig):
    """As after a reboot, or where somebody removed it: who was there is not known any more."""
    bundle = Bundle(rig, "ID")
    assert create(rig, bundle) == EXECED
    shutil.rmtree(rig.store.parent)
    assert create(rig, bundle) == EXECED
    assert holders(rig) == ["ID"]
