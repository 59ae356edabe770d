# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPUs that a machine has had."""

import dataclasses

import pytest

from gpu_agent.availability import known_gpus as known
from gpu_agent.availability.known_gpus import Known

ONE = Known("GPU-1", "nvidia", "NVIDIA L4", "0000:01:00.0", 0, allowed=True)
TWO = Known("PCI-0000:41:00.0", "amd", "AMD Instinct MI300X", "0000:41:00.0", 1, allowed=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gpu-ci" / "inventory.json"


def test_what_was_added_is_read_again(path):
    assert known.read(path) == ()
    assert known.add([ONE, TWO], path)
    assert known.read(path) == (ONE, TWO)
    assert not known.add([TWO, ONE], path)


def test_a_gpu_is_kept_as_it_was_last_seen_and_others_stay(path):
    moved = dataclasses.replace(ONE, pci_address="0000:02:00.0", allowed=False)
    known.add([ONE, TWO], path)
    assert known.add([moved], path)
    assert known.read(path) == (moved, TWO)


def test_one_is_forgotten_once(path):
    assert not known.forget("GPU-1", path)
    assert not path.exists()
    known.add([ONE, TWO], path)
    assert known.forget("GPU-1", path)
    assert not known.forget("GPU-1", path)
    assert known.read(path) == (TWO,)


@pytest.mark.parametrize(
    "text",
    [b"", b"[{", b"{}x", b"[1]", b'[{"uuid": "GPU-1"}]', b'[{"vendor": 1}]', b"\xff[]", b"\0\0"],
)
def test_a_damaged_file_is_said_and_left_alone(path, text):
    path.parent.mkdir()
    path.write_bytes(text)
    for call in (lambda: known.read(path), lambda: known.add([ONE], path)):
        with pytest.raises(known.KnownError, match=r"inventory\.json is damaged"):
            call()
    assert path.read_bytes() == text
