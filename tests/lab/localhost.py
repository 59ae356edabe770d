# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Play a machine with Juju and LXD: stand-ins for `juju` and `lxc`, answered by the lab's Juju.

They have the few commands that scripts/deploy-lxd and scripts/lxd-gpu call. A container of "LXD"
is a machine of the lab; a card that it is given is a simulated one. A real Juju works all the
time, the lab's only while one of its commands runs: here, while it is asked for its status.
"""

import argparse
import json
import pathlib
import sys

from tests.lab import outfit, session, walk
from tests.lab.juju.store import Store
from tests.lab.session import ROOT, Lab

# Cards of the host, as LXD reports them (/1.0/resources).
CARDS = tuple(
    {
        "pci_address": f"0000:0{number}:00.0",
        "driver": "nvidia",
        "vendor_id": "10de",
        "product_id": "20b2",
        "product": "A100 SXM4 80GB",
        "drm": {"id": number},
    }
    for number in (1, 2)
)
# How long a look at Juju lets its agents work, in seconds.
WORK_SECONDS = 2
PROGRAM = """#!/bin/sh
cd {root} && PYTHONPATH={root} exec {python} -m tests.lab.localhost {name} "$@"
"""


def install(folder: pathlib.Path) -> None:
    """Install both commands in a folder for PATH."""
    for name in ("juju", "lxc"):
        program = folder / name
        program.write_text(PROGRAM.format(root=ROOT, python=sys.executable, name=name))
        program.chmod(0o755)


def status(store: Store) -> dict[str, object]:
    """What `juju status --format json` says, as far as the scripts read it."""
    return {
        "model": {"name": "lab", "controller": "lab", "cloud": "localhost"},
        "machines": {
            unit["machine_id"]: {"instance-id": unit["machine"] if unit["address"] else "pending"}
            for unit in store.rows("SELECT * FROM unit")
        },
        "applications": {
            app["name"]: _application(store, app["name"], bool(app["played"]))
            for app in store.rows("SELECT * FROM application")
        },
    }


def _application(store: Store, app: str, played: bool) -> dict[str, object]:
    units = {}
    for unit in store.rows("SELECT * FROM unit WHERE app = ?", app):
        agent = "idle" if unit["agent"] == "error" else unit["agent"]
        current = "error" if unit["agent"] == "error" else unit["status"]
        units[unit["name"]] = {
            "machine": unit["machine_id"],
            "workload-status": {"current": current, "message": unit["message"]},
            "juju-status": {"current": agent},
        }
    relations: dict[str, list[dict[str, str]]] = {}
    sql = (
        "SELECT own.endpoint, other.app FROM relation_end own JOIN relation_end other "
        "ON own.relation = other.relation AND own.app != other.app WHERE own.app = ?"
    )
    for end in store.rows(sql, app):
        relations.setdefault(end["endpoint"], []).append({"related-application": end["app"]})
    name = app if played else store.meta(app)["name"]
    return {"charm-name": name, "units": units, "relations": relations}


def juju(lab: Lab, words: list[str]) -> object:
    """One command of Juju's; what it prints as JSON, or None."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("words", nargs="+" if words[0] != "status" else "*")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--channel")
    parser.add_argument("--format")
    it = parser.parse_intermixed_args(words)
    if it.verb == "deploy":
        _deploy(lab, it.words, dict(pair.split("=") for pair in it.config))
    elif it.verb == "integrate":
        lab.model.integrations.integrate(*it.words)
    elif it.verb == "config":
        settings = lab.model.config(it.words[0]).items()
        return {"settings": {name: {"value": value} for name, value in settings}}
    elif it.verb == "run":
        unit = it.words[0].replace("/leader", "/0")
        action = lab.model.run_action(unit, it.words[1], {})
        lab.settle()
        row = lab.store.row("SELECT * FROM action WHERE id = ?", action)
        return {unit: {"status": row["status"], "results": json.loads(row["results"])}}
    else:
        lab.controller.settle(lambda: False, WORK_SECONDS)
        return status(lab.store)
    return None


def _deploy(lab: Lab, words: list[str], config: dict[str, str]) -> None:
    if words == ["postgresql"]:
        lab.model.play("postgresql", walk.POSTGRESQL)
        return
    charm, app = words
    walk.choose(lab)
    resources = {"concourse": pathlib.Path(lab.setting("concourse"))}
    wanted = {} if config["deployment-mode"] == "web" else {"gpus": 0}
    lab.model.deploy(pathlib.Path(charm), app, config, resources, binds=walk.BINDS, outfit=wanted)


def lxc(lab: Lab, words: list[str]) -> object:
    """One command of LXD's; what it prints as JSON, or None."""
    match words:
        case ["query", "/1.0/resources"]:
            return {"gpu": {"cards": CARDS}}
        case ["query", _]:
            return [_instance(lab, row) for row in lab.store.rows("SELECT * FROM unit")]
        case ["config", "device", "add", name, device, "gpu", *values]:
            unit = lab.store.value("SELECT name FROM unit WHERE machine = ?", name)
            outfit.fakegpu(lab.model.machine(unit), "add")
            made = dict(pair.split("=") for pair in values)
            lab.setting(f"devices-{name}", json.dumps({device: {"type": "gpu", **made}}))
    return None


def _instance(lab: Lab, unit: object) -> dict[str, object]:
    name = unit["machine"]  # pyright: ignore
    devices = json.loads(lab.setting(f"devices-{name}") or "{}")
    own = {"devices": devices, "expanded_devices": devices, "profiles": ["default"]}
    return {"name": name, "project": "default", "location": "none", "type": "container", **own}


def main() -> None:
    """Play `juju` or `lxc`, by the first argument."""
    program, *words = sys.argv[1:]
    with session.changing(lambda line: print(line, file=sys.stderr), make=True) as lab:
        said = {"juju": juju, "lxc": lxc}[program](lab, words)
    if said is not None:
        print(json.dumps(said))


if __name__ == "__main__":
    main()
