# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What an operator does to the model: deploy, integrate, config and the like, in Juju's words.

Each verb changes the model and queues events; `Controller.settle` runs them.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.errors import WrongUse
from tests.lab.juju import charmfile, events, played
from tests.lab.juju.agent import unit_tag
from tests.lab.juju.controller import Controller
from tests.lab.juju.integrations import Integrations
from tests.lab.juju.params import typed
from tests.lab.juju.resources import attach_file, check_files
from tests.lab.juju.store import Row
from tests.lab.juju.user_secrets import UserSecrets
from tests.lab.machines import Machine


class Model:
    """The operator's view of a controller's model.

    Args:
        controller: whose model it is.
    """

    def __init__(self, controller: Controller):
        self.controller = controller
        self.store = controller.store
        self.integrations = Integrations(self.store)
        self.secrets = UserSecrets(self.store)

    def application(self, name: str) -> Row:
        """An application by name.

        Raises:
            WrongUse: there is none.
        """
        row = self.store.row("SELECT * FROM application WHERE name = ?", name)
        if not row:
            have = (
                ", ".join(self.store.column("SELECT name FROM application ORDER BY name"))
                or "none"
            )
            raise WrongUse(f"application {name!r} not found: have {have}")
        return row

    def unit(self, name: str) -> Row:
        """A unit by name.

        Raises:
            WrongUse: there is none.
        """
        row = self.store.row("SELECT * FROM unit WHERE name = ?", name)
        if not row:
            have = (
                ", ".join(self.store.column("SELECT name FROM unit ORDER BY app, number"))
                or "none"
            )
            raise WrongUse(f"unit {name!r} not found: have {have}")
        return row

    def deploy(
        self,
        charm: pathlib.Path,
        app: str,
        config: Mapping[str, str] | None = None,
        resources: Mapping[str, pathlib.Path] | None = None,
        units: int = 1,
        to: Sequence[str] = (),
        binds: Sequence[str] = (),
        outfit: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an application of a packed charm, and its units.

        Args:
            charm, app: the .charm file, and the application's name.
            config: options, as typed.
            resources: files to attach; an empty file for each that is left out.
            units: how many.
            to: ids of machines for the first of them; the others get new ones.
            binds, outfit: of its machines; see Park.up and Agent's outfitter.

        Raises:
            WrongUse: a name, option, resource or machine that cannot be.
        """
        self._check_name(app)
        meta = charmfile.read(charm)
        options = charmfile.parse_options(meta.options, config or {})
        check_files(meta, resources or {})
        with self.store.transaction():
            row = {
                "name": app,
                "charm": str(self._store_charm(charm, app, 0)),
                "meta": json.dumps(dataclasses.asdict(meta)),
                "binds": json.dumps(list(binds)),
                "outfit": json.dumps(outfit or {}),
            }
            self._insert_application(row)
            for name, value in options.items():
                self.store.do("INSERT INTO option VALUES (?, ?, ?)", app, name, json.dumps(value))
            for name, filename in meta.resources.items():
                self._attach(app, name, filename, (resources or {}).get(name))
            self.integrations.make_peers(app, meta.endpoints)
            for number in range(units):
                self._add_unit(app, to[number] if number < len(to) else "")

    def play(self, app: str, path: str, units: int = 1) -> None:
        """Add an application that the lab plays (played.py).

        Args:
            app: its name.
            path: `package.module:Class`.
            units: how many.
        """
        self._check_name(app)
        kind = played.load(path)
        meta = charmfile.CharmMeta(app, kind.endpoints, kind.options, kind.actions, {})
        row = {
            "name": app,
            "charm": "",
            "meta": json.dumps(dataclasses.asdict(meta)),
            "played": path,
        }
        with self.store.transaction():
            self._insert_application(row)
            self.integrations.make_peers(app, meta.endpoints)
            for _ in range(units):
                self._add_unit(app)

    def _insert_application(self, row: Mapping[str, str]) -> None:
        columns = ", ".join(row)
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO application ({columns}) VALUES ({marks})"
        self.store.do(sql, *row.values())

    def _check_name(self, app: str) -> None:
        if self.store.row("SELECT 1 FROM application WHERE name = ?", app):
            raise WrongUse(
                f"application {app!r} is there already: use refresh, config or another name"
            )

    def _store_charm(self, charm: pathlib.Path, app: str, revision: int) -> pathlib.Path:
        stored = self.controller.shared / "charms" / f"{app}-{revision}.charm"
        shutil.copyfile(charm, stored)
        return stored

    def _attach(self, app: str, name: str, filename: str, source: pathlib.Path | None) -> None:
        attach_file(self.store, self.controller.shared, app, name, filename, source)

    def remove_application(self, app: str) -> None:
        """Remove an application: its units say goodbye, and the others hear of it meanwhile.

        Raises:
            WrongUse: no such application.
        """
        self.application(app)
        with self.store.transaction():
            self.store.do("UPDATE application SET life = 'dying' WHERE name = ?", app)
            for unit in self.store.column("SELECT name FROM unit WHERE app = ?", app):
                self.remove_unit(unit)
            events.part_from_others(self.store, app)
            events.forget_application(self.store, app)

    def machine(self, unit: str) -> Machine:
        """The machine that a unit is on.

        Raises:
            WrongUse: no such unit.
        """
        return self.controller.park.get(self.unit(unit)["machine"])

    def add_units(self, app: str, count: int = 1) -> list[str]:
        """Add units to an application, on machines of their own; their names.

        Raises:
            WrongUse: no such application, or one that is only played.
        """
        if self.application(app)["played"]:
            raise WrongUse(f"{app} is played by the lab and keeps the units that it has")
        with self.store.transaction():
            return [self._add_unit(app) for _ in range(count)]

    def _add_unit(self, app: str, to: str = "") -> str:
        """Add a unit on the machine with this id, which another unit is on, or on a new one."""
        number = self.store.application(app)["next_unit"]
        unit = f"{app}/{number}"
        sql = "SELECT machine FROM unit WHERE machine_id = ?"
        machine = self.store.value(sql, to) if to else unit_tag(unit)
        row = (unit, app, number, machine, to or self._new_machine_id())
        self.store.do("UPDATE application SET next_unit = ? WHERE name = ?", number + 1, app)
        sql = "UPDATE application SET leader = ? WHERE name = ? AND leader = ''"
        self.store.do(sql, unit, app)
        sql = "INSERT INTO unit (name, app, number, machine, machine_id) VALUES (?, ?, ?, ?, ?)"
        self.store.do(sql, *row)
        events.begin_unit(self.store, unit)
        return unit

    def _new_machine_id(self) -> str:
        number = int(self.store.value("SELECT value FROM model WHERE key = 'machines'") or 0)
        self.store.do("INSERT OR REPLACE INTO model VALUES ('machines', ?)", str(number + 1))
        return str(number)

    def remove_unit(self, name: str, force: bool = False) -> None:
        """Remove a unit: it says goodbye first, unless forced.

        Raises:
            WrongUse: no such unit.
        """
        self.unit(name)
        with self.store.transaction():
            if force:
                self.store.do("DELETE FROM event WHERE unit = ?", name)
                self.store.do("UPDATE unit SET life = 'dying' WHERE name = ?", name)
                events.enqueue(self.store, name, events.TEARDOWN)
            elif self.unit(name)["life"] == "alive":
                events.end_unit(self.store, name)

    def config(self, app: str) -> dict[str, Any]:
        """An application's options as they are: set, or default."""
        self.application(app)
        declared = self.store.meta(app)["options"]
        values = {name: spec.get("default") for name, spec in declared.items()}
        sql = "SELECT name, value FROM option WHERE app = ?"
        return values | {r["name"]: json.loads(r["value"]) for r in self.store.rows(sql, app)}

    def set_config(
        self, app: str, values: Mapping[str, str], reset: Sequence[str] = (), times: int = 2
    ) -> None:
        """Set options from typed text, and put others back to their defaults.

        Juju usually fires config-changed twice for one command, here `times`. For a reset alone
        Juju 4.0.15 notifies no unit (domain/application/state/application.go,
        UnsetApplicationConfigKeys makes no new hash of them): the next event reads them.

        Raises:
            WrongUse: unknown option, wrong type; nothing is changed then.
        """
        self.application(app)
        declared = self.store.meta(app)["options"]
        parsed = charmfile.parse_options(declared, values)
        for name in set(reset) - declared.keys():
            have = ", ".join(sorted(declared))
            raise WrongUse(f"unknown option {name!r}: the charm has {have}")
        before = self.config(app)
        with self.store.transaction():
            for name, value in parsed.items():
                sql = "INSERT OR REPLACE INTO option VALUES (?, ?, ?)"
                self.store.do(sql, app, name, json.dumps(value))
            for name in reset:
                self.store.do("DELETE FROM option WHERE app = ? AND name = ?", app, name)
            if values and self.config(app) != before:
                self._tell_all(app, "config-changed", times)

    def _tell_all(self, app: str, kind: str, times: int = 1) -> None:
        for unit in self.store.column("SELECT name FROM unit WHERE app = ? ORDER BY number", app):
            events.notify(self.store, unit, kind, times)

    def refresh(self, app: str, charm: pathlib.Path, force_units: bool = False) -> None:
        """Upgrade an application to another packed charm.

        Args:
            app: the application.
            charm: the new charm, of the same name.
            force_units: also give it to units whose hook has failed, and run that again.

        Raises:
            WrongUse: no such application, or it is another charm.
        """
        row = self.application(app)
        meta = charmfile.read(charm)
        if row["played"] or meta.name != self.store.meta(app)["name"]:
            raise WrongUse(f"{app} cannot become the charm {meta.name}")
        attached = set(self.store.column("SELECT name FROM resource WHERE app = ?", app))
        with self.store.transaction():
            stored = self._store_charm(charm, app, row["revision"] + 1)
            self.store.do(
                "UPDATE application SET charm = ?, revision = revision + 1, meta = ? "
                "WHERE name = ?",
                str(stored),
                json.dumps(dataclasses.asdict(meta)),
                app,
            )
            for name in set(meta.resources) - attached:
                self._attach(app, name, meta.resources[name], None)
            self._tell_all(app, "upgrade-charm")
            self._tell_all(app, "config-changed")
        sql = (
            "SELECT DISTINCT unit FROM event JOIN unit ON event.unit = unit.name "
            "WHERE app = ? AND state = 'failed' AND kind != ?"
        )
        for unit in self.store.column(sql, app, events.PROVISION) if force_units else ():
            self.controller.agent(unit).unpack()
            self.resolved(unit)

    def attach_resource(self, app: str, name: str, path: pathlib.Path) -> None:
        """Give an application another file; its units get upgrade-charm and config-changed.

        Raises:
            WrongUse: no such application, resource or file.
        """
        self.application(app)
        meta = charmfile.CharmMeta(**self.store.meta(app))
        check_files(meta, {name: path})
        with self.store.transaction():
            self._attach(app, name, meta.resources[name], path)
            self._tell_all(app, "upgrade-charm")
            self._tell_all(app, "config-changed")

    def update_status(self, unit: str = "") -> None:
        """Queue update-status for one unit, or for all that have a charm.

        Raises:
            WrongUse: no such unit.
        """
        units = [self.unit(unit)["name"]] if unit else self.store.column("SELECT name FROM unit")
        with self.store.transaction():
            for name in units:
                if not self.store.application(events.app_of(name))["played"]:
                    events.update_status(self.store, name)

    def resolved(self, unit: str) -> None:
        """Run a failed hook again.

        Raises:
            WrongUse: no such unit, or it is not in error.
        """
        self.unit(unit)
        sql = "SELECT id FROM event WHERE unit = ? AND state = 'failed'"
        event = self.store.value(sql, unit)
        if not event:
            raise WrongUse(f"unit {unit} is not in an error state")
        self.store.do("UPDATE event SET state = 'pending', attempts = 0 WHERE id = ?", event)

    def run_action(self, unit: str, name: str, pairs: Mapping[str, str]) -> str:
        """Queue an action; its id. Only the unit looks whether the parameters fit.

        Args:
            unit, name: where, and which.
            pairs: parameters as they are typed, to be read as YAML.

        Raises:
            WrongUse: no such unit or action, or a parameter that cannot be.
        """
        actions = self.store.meta(self.unit(unit)["app"])["actions"]
        if name not in actions:
            have = ", ".join(sorted(actions)) or "none"
            raise WrongUse(f'action "{name}" not defined for unit "{unit}": have {have}')
        params = typed(pairs)
        with self.store.transaction():
            number = int(self.store.value("SELECT count(*) FROM action") or 0) + 1
            while self.store.value("SELECT 1 FROM action WHERE id = ?", str(number)):
                number += 1
            sql = "INSERT INTO action (id, unit, name, params) VALUES (?, ?, ?, ?)"
            self.store.do(sql, str(number), unit, name, json.dumps(params))
            events.enqueue(self.store, unit, "action", action=str(number))
        return str(number)
