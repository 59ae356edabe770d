# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Implement the lab commands that change the model.

Each takes its parsed arguments and returns an exit status.
"""

import argparse
import json
import pathlib
import sys

import yaml

from tests.lab import outfit, session, walk
from tests.lab.errors import WrongUse
from tests.lab.juju import charmfile
from tests.lab.session import Lab

# Changes of a running card for which no hook is fired, as on a real machine.
_WITHOUT_A_HOOK = frozenset(
    {"status", "xid", "event", "busy", "memory", "hang", "unhang", "refuse-reset"}
)


# Changes after which the health service may wake the unit, and the longest wait for it, in
# seconds: a unit of Juju's has an agent that always answers.
_WAKES = frozenset({"xid", "event", "hang", "unhang"})
_ANSWERED = 10.0
# How long a command lets programs speak that have waited for an agent, in seconds.
_WAITING = 1.0


def pairs(items: list[str], what: str) -> dict[str, str]:
    """Parse `key=value` arguments.

    Raises:
        WrongUse: one without `=`.
    """
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise WrongUse(f"{what} are written key=value, not {item!r}")
        found[key] = value
    return found


def up(args: argparse.Namespace) -> int:
    """Start the lab from nothing and run a task with its GPUs."""
    say = session.Progress()
    with session.changing(say, make=True) as lab:
        walk.up(lab, say, args.bare, args.nested)
    return 0


def deploy(args: argparse.Namespace) -> int:
    """Deploy a packed charm; this charm gets the lab's Concourse, and workers their GPUs."""
    say = session.Progress()
    resources = {k: pathlib.Path(v) for k, v in pairs(args.resource, "resources").items()}
    charm = walk.pack() if args.charm == "." else pathlib.Path(args.charm)
    meta = charmfile.read(charm)
    config = pairs(args.config, "options")
    charmfile.parse_options(meta.options, config)
    with session.changing(say, make=True) as lab:
        wanted = {}
        if "deployment-mode" in meta.options:
            walk.choose(lab)
            resources.setdefault("concourse", pathlib.Path(lab.setting("concourse")))
            if config.get("deployment-mode") != "web":
                wanted = {"gpus": args.gpus, "bare": args.bare and walk.can_be_bare(lab)}
        if wanted.get("bare"):
            config = walk.mirror_options(lab, charm) | config
        lab.model.deploy(
            charm, args.app, config, resources, args.units, binds=walk.BINDS, outfit=wanted,
        )  # fmt: skip
        lab.settle()
    return 0


def integrate(args: argparse.Namespace) -> int:
    """Relate two applications."""
    with session.changing(session.Progress()) as lab:
        lab.model.integrations.integrate(args.one, args.two)
        lab.settle()
    return 0


def remove_relation(args: argparse.Namespace) -> int:
    """Remove a relation."""
    with session.changing(session.Progress()) as lab:
        lab.model.integrations.remove(args.one, args.two)
        lab.settle()
    return 0


def config(args: argparse.Namespace) -> int:
    """Show, set or reset options."""
    try:
        return _config(args)
    except WrongUse:
        # Juju's own option: what it would print of the options, before the error.
        print("{}", flush=True)
        raise


def _config(args: argparse.Namespace) -> int:
    values = pairs([v for v in args.values if "=" in v], "options")
    asked = [v for v in args.values if "=" not in v]
    if values or args.reset:
        if asked:
            raise WrongUse(f"options are written key=value, not {asked[0]!r}")
        with session.changing(session.Progress()) as lab:
            lab.model.set_config(args.app, values, args.reset)
            lab.settle()
        if not values:
            print(f"Juju does not report a reset to units: lab update-status {args.app}/0")
        return 0
    lab = session.look()
    options = lab.model.config(args.app)
    for name in asked:
        if name not in options:
            raise WrongUse(f"unknown option {name!r}: the charm has {', '.join(sorted(options))}")
    shown = {name: options[name] for name in asked} if asked else options
    print(yaml.safe_dump(shown, sort_keys=True), end="")
    return 0


class _AsJuju(yaml.SafeDumper):
    """Writes a text of several lines unchanged, as Juju does: a table stays a table."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Write one string."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)


_AsJuju.add_representer(str, _AsJuju.represent_text)


def as_juju(results: dict[str, object]) -> str:
    """Format an action's results as juju run does: long lines are folded at a space."""
    return yaml.dump(results, Dumper=_AsJuju, width=80, allow_unicode=True)


def run(args: argparse.Namespace) -> int:
    """Run an action and print its results; as with Juju it fails only by a crash."""
    params = pairs(args.values, "parameters")
    with session.changing(lambda line: print(line, flush=True)) as lab:
        action = lab.model.run_action(args.unit, args.action, params)
        lab.settle()
        row = lab.store.row("SELECT * FROM action WHERE id = ?", action)
    if not row:
        raise WrongUse(f"{args.unit} was removed before the action ran")
    results = json.loads(row["results"])
    status = results.pop("return-code", 0)
    if row["status"] != "completed":
        print(f"Action id {action} failed: {row['message']}")
    if results:
        print(as_juju(results), end="")
    if status:
        print(f'lab: task "{action}" failed with return code {status}', file=sys.stderr)
    return 1 if status else 0


def add_unit(args: argparse.Namespace) -> int:
    """Add units."""
    if args.units < 1:
        raise WrongUse(f"cannot add {args.units} units: use 1 or more")
    with session.changing(session.Progress()) as lab:
        print("added " + ", ".join(lab.model.add_units(args.app, args.units)))
        lab.settle()
    return 0


def remove_unit(args: argparse.Namespace) -> int:
    """Remove units."""
    with session.changing(session.Progress()) as lab:
        for unit in args.units:
            lab.model.unit(unit)
        for unit in args.units:
            lab.model.remove_unit(unit, args.force)
        lab.settle()
    return 0


def remove_application(args: argparse.Namespace) -> int:
    """Remove an application."""
    with session.changing(session.Progress()) as lab:
        lab.model.remove_application(args.app)
        lab.settle()
    return 0


def refresh(args: argparse.Namespace) -> int:
    """Upgrade an application's charm."""
    charm = pathlib.Path(args.charm) if args.charm else walk.pack()
    with session.changing(session.Progress()) as lab:
        lab.model.refresh(args.app, charm)
        lab.settle()
    return 0


def attach_resource(args: argparse.Namespace) -> int:
    """Replace the file of a resource of an application."""
    with session.changing(session.Progress()) as lab:
        for name, path in pairs([args.resource], "resources").items():
            lab.model.attach_resource(args.app, name, pathlib.Path(path))
        lab.settle()
    return 0


def update_status(args: argparse.Namespace) -> int:
    """Fire update-status."""
    with session.changing(session.Progress()) as lab:
        lab.model.update_status(args.unit)
        lab.settle()
    return 0


def resolved(args: argparse.Namespace) -> int:
    """Run a failed hook again."""
    with session.changing(session.Progress()) as lab:
        lab.model.resolved(args.unit)
        lab.settle()
    return 0


def secret(args: argparse.Namespace) -> int:
    """Add, change or grant secrets of the operator."""
    with session.changing(session.Progress()) as lab:
        secrets = lab.model.secrets
        if args.verb == "grant":
            if len(args.values) != 1:
                raise WrongUse("secret grant NAME APP: name one application")
            secrets.grant(args.name, args.values[0])
        elif args.verb == "add":
            print(secrets.add(args.name, secret_content(args.values)))
        else:
            secrets.update(args.name, secret_content(args.values))
        lab.settle()
    return 0


def secret_content(values: list[str]) -> dict[str, str]:
    """Return a secret's content from `key=value` and `key#file=path` arguments.

    Raises:
        WrongUse: another form, or a file that cannot be read.
    """
    content: dict[str, str] = {}
    for key, value in pairs(values, "a secret's keys").items():
        name, is_file, _ = key.partition("#file")
        try:
            content[name] = pathlib.Path(value).read_text() if is_file else value
        except OSError as error:
            raise WrongUse(f"cannot read {value}: {error.strerror}") from error
    return content


def gpu(args: argparse.Namespace) -> int:
    """Change a unit's simulated GPUs; let the charm look unless the health service has to."""
    command = [args.verb, *args.arguments]
    with session.changing(session.Progress()) as lab:
        if args.verb in _WAKES and "clear" not in args.arguments:
            return _woken(lab, args.unit, command)
        code = _fakegpu(lab, args.unit, command)
        if code == 0 and args.verb not in _WITHOUT_A_HOOK:
            lab.model.update_status(args.unit)
            lab.settle()
    return code


def _woken(lab: Lab, unit: str, command: list[str]) -> int:
    """Change its GPUs while its agent answers, until its status changes or for a while."""
    codes: list[int] = []

    def message() -> str:
        return str(lab.store.value("SELECT message FROM unit WHERE name = ?", unit))

    def is_told() -> bool:
        if not codes:
            codes.append(_fakegpu(lab, unit, command))
        return bool(codes[0]) or message() != before

    # Let the health service report earlier changes first: they are not the answer to this one.
    lab.controller.settle(lambda: False, _WAITING)
    before = message()
    lab.controller.settle(is_told, _ANSWERED)
    if codes == [0] and message() == before:
        # The health service wakes the unit once in 30 s, and may have just done so.
        lab.model.update_status(unit)
        lab.settle()
    return codes[0]


def _fakegpu(lab: Lab, unit: str, arguments: list[str]) -> int:
    lab.model.unit(unit)
    if "gpus" not in json.loads(lab.store.application(unit.partition("/")[0])["outfit"]):
        raise WrongUse(f"{unit} has no simulated GPUs")
    machine = lab.controller.agent(unit).machine()
    done = outfit.fakegpu(machine, *arguments, check=False)
    print(done.stdout + done.stderr, end="", flush=True)
    return 2 if done.returncode else 0


def destroy(_: argparse.Namespace) -> int:
    """Remove the lab, whatever state it is in."""
    say = session.Progress()
    directory = session.state_dir()
    if not directory.exists():
        say(f"no lab in {directory}")
        return 0
    with session.locked(directory, say):
        lab = Lab(directory, say)
        say(f"removing {', '.join(lab.park.names()) or 'no machines'}")
        lab.controller.destroy()
    say("nothing of the lab is left")
    return 0
