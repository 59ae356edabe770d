# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""scripts/lxd-gpu as a module, and a stand-in for the Juju and the LXD that it asks."""

import contextlib
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import urllib.parse

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
ONE, TWO, THREE = (f"0000:0{number}:00.0" for number in (1, 2, 3))
UUID = "7c2a6b1e-0000-4000-8000-0123456789ab"
VGA = {"pci_address": "0000:05:00.0", "vendor_id": "1a03", "product_id": "2000", "driver": "ast"}


@contextlib.contextmanager
def loaded(script="lxd-gpu"):
    """A command as a module, and its cards beside it; nothing compiled is left in the tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.syspath_prepend(SCRIPTS)
        name = script.replace("-", "_")
        loader = importlib.machinery.SourceFileLoader(name, str(SCRIPTS / script))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        loader.exec_module(module)
        yield module, sys.modules["lxd_cards"]
        del sys.modules["lxd_cards"], sys.modules["lxd_commands"]


def card(address, vendor="10de", driver="nvidia", drm=0, **more):
    return {
        "pci_address": address,
        "vendor_id": vendor,
        "product_id": "20b2",
        "driver": driver,
        "drm": {"id": drm},
        "nvidia": {"model": "NVIDIA L4"} if vendor == "10de" else None,
        **more,
    }


def ours(address):
    return {"type": "gpu", "gputype": "physical", "pci": address, "mode": "0666"}


def name(address):
    return f"gpuci-{address.replace(':', '-')}"


class Host:
    """A host whose Juju and LXD answer, and take devices; its operator says `answer`."""

    def __init__(self, units=1, cards=(ONE, TWO)):
        self.cards = [card(address, drm=place) for place, address in enumerate(cards)]
        self.profiles = {"default": {}, "juju-ci-abcdef": {}, "juju-ci-worker-0": {}}
        self.settings = {"deployment-mode": "worker", "enable-gpu": True, "gpu-vendor": "auto"}
        self.instances, self.machines, self.units = {}, {}, {}
        for number in range(units):
            self.units[f"worker/{number}"] = {"machine": str(number)}
            self.machines[str(number)] = {"instance-id": f"juju-abcdef-{number}"}
            self.instance(f"juju-abcdef-{number}")
        self.asked, self.broken, self.answer = [], "", "y"

    def instance(self, name, **more):
        self.instances[name] = {
            "name": name,
            "project": "default",
            "type": "container",
            "location": "none",
            "config": {"user.juju-model-uuid": UUID},
            "devices": {},
            "profiles": list(self.profiles),
            **more,
        }

    def has(self, unit=0):
        """The cards that a unit has, in words of LXD."""
        return [it["pci"] for it in self.expanded(self.instances[f"juju-abcdef-{unit}"]).values()]

    def expanded(self, instance):
        levels = [self.profiles[name] for name in instance["profiles"]]
        return dict(kind for level in (*levels, instance["devices"]) for kind in level.items())

    def query(self, path):
        path = urllib.parse.urlsplit(path).path
        if path == "/1.0":
            return {"environment": {"server_name": "here"}}
        if path == "/1.0/resources":
            return {"gpu": {"cards": self.cards or None}}
        if path == "/1.0/instances":
            return [
                {**one, "expanded_devices": self.expanded(one)} for one in self.instances.values()
            ]
        return {"devices": self.profiles[path.removeprefix("/1.0/profiles/")]}

    def read(self, _prompt):
        return self.answer

    def ask(self, *command):
        match command:
            case ("juju", "status", *_):
                apps = {"worker": {"units": self.units}, "web": {}}
                model = {"name": "ci"}
                answer = {"model": model, "machines": self.machines, "applications": apps}
            case ("juju", "show-model", *_):
                answer = {"ci": {"name": "admin/ci", "model-uuid": UUID}}
            case ("juju", "config", *_):
                answer = {"settings": {key: {"value": is_} for key, is_ in self.settings.items()}}
            case ("lxc", "query", path):
                answer = self.query(path)
            case _:
                answer = self.change(*command)
        return json.dumps(answer)

    def change(self, _lxc, kind, _device, verb, owner, device, *values):
        self.asked.append((verb, owner, device))
        if device == self.broken:
            raise sys.modules["lxd_commands"].Refused("lxc: Error: no")
        there = self.profiles[owner] if kind == "profile" else self.instances[owner]["devices"]
        if verb == "remove":
            del there[device]
        else:
            assert device not in there
            pairs = [value.split("=") for value in values[1:] if "=" in value]
            there[device] = {"type": values[0], **dict(pairs)}
