# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What scripts/lxd-gpu knows of cards: an even deal, who takes which, which are of use."""

import itertools

import pytest

from gpu_agent.diagnosis import facts as host_facts
from tests.unit import lxd_host
from tests.unit.lxd_host import ONE, THREE, TWO, VGA, card


@pytest.fixture(scope="module")
def cards():
    with lxd_host.loaded() as (_, cards):
        yield cards


def test_the_commands_in_status_give_the_very_devices(cards):
    (name, device), *_ = cards.devices([cards.Card.of(card(ONE))]).items()
    keys = " ".join(f"{key}={value}" for key, value in device.items() if key != "type")
    assert host_facts.pass_in("c1", ONE) == f"lxc config device add c1 {name} gpu {keys}"


def test_any_deal_is_even_and_final(cards):
    """Over all ways in which up to three units can have up to four cards before."""
    for count, units in itertools.product(range(5), range(1, 4)):
        if count < units:
            continue
        names = [f"0000:0{number}:00.0" for number in range(count)]
        for before in itertools.product(range(units + 1), repeat=count):
            has = {
                unit: [card for card, at in zip(names, before, strict=True) if at == unit]
                for unit in range(units)
            }
            dealt = cards.divide(names, has)
            assert sorted(itertools.chain(*dealt.values())) == names
            sizes = sorted(map(len, dealt.values()))
            assert sizes[-1] - sizes[0] <= 1
            assert cards.divide(names, dealt) == dealt
            # No card moves that need not.
            kept = sum(card in dealt[unit] for unit in has for card in has[unit])
            assert kept == sum(map(min, sorted(map(len, has.values())), sizes))


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"type": "disk"}, []),
        ({"type": "gpu"}, [ONE, TWO]),
        ({"type": "gpu", "pci": "02:00.0"}, [TWO]),
        ({"type": "gpu", "pci": "0000:02:00.0", "gputype": "mig"}, [TWO]),
        ({"type": "gpu", "id": "0"}, [ONE]),
        ({"type": "gpu", "vendorid": "10de"}, [ONE, TWO]),
        ({"type": "gpu", "vendorid": "1002"}, []),
        ({"type": "gpu", "id": "nvidia.com/gpu=1"}, [ONE, TWO]),
        ({"type": "gpu", "id": "nvidia.com/gpu=GPU-b"}, [TWO]),
    ],
)
def test_which_cards_a_device_takes(cards, device, expected):
    told = [
        card(address, drm=place, nvidia={"uuid": uuid, "model": "L4"})
        for place, (address, uuid) in enumerate([(ONE, "GPU-a"), (TWO, "GPU-b")])
    ]
    found = map(cards.Card.of, told)
    assert [it.address for it in found if cards.covers(device, it)] == expected


def test_which_cards_are_of_use(cards):
    told = [
        card("0000:00:02.0", "8086", "i915"),
        card("", drm=1),
        card(TWO),
        card(ONE),
        card(THREE, driver="vfio-pci"),
        card("0000:07:00.0", "1002", "amdgpu"),
        VGA,
    ]
    every = list(map(cards.Card.of, told))

    def addresses(vendor, among):
        return [it.address for it in cards.usable(among, vendor)]

    assert addresses("auto", every) == [ONE, TWO]
    assert addresses("amd", every) == ["0000:07:00.0"]
    assert addresses("intel", every) == ["0000:00:02.0"]
    with pytest.raises(cards.Refused):
        cards.usable([it for it in every if it.vendor == "8086"], "auto")
