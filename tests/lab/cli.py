# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The `lab` command: drive a Juju of its own on this machine, with simulated GPUs."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tests.lab import commands_look as look
from tests.lab import commands_model as model
from tests.lab import nested
from tests.lab.errors import LabError

WRONG_USE = 2
INTERRUPTED = 130

BARE = "workers' machines have GPUs, but no driver and no toolkit: the charm installs these"

Command = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and name the help."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        self.exit(WRONG_USE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def split(text: str) -> list[str]:
    """Return the parts of `a,b`."""
    return text.split(",")


def build() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="lab",
        description="The charm on disposable machines with simulated GPUs, driven as Juju does.",
        epilog="Start with: lab up, which prints the next steps. More: lab COMMAND --help.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, function: Command, text: str, example: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=f"{text}.", epilog=f"Example: lab {example}"
        )
        command.set_defaults(function=function)
        return command

    add_model_commands(add)
    add_setting_commands(add)
    add_unit_commands(add)
    add_look_commands(add)
    return parser


Adder = Callable[[str, Command, str, str], argparse.ArgumentParser]


def add_model_commands(add: Adder) -> None:
    """Add the commands for applications and relations."""
    it = add("up", model.up, "Start the whole lab and run a task with its GPUs", "up")
    it.add_argument("--bare", action="store_true", help=BARE)
    it.add_argument("--nested", action="store_true", help=nested.HELP)
    it = add(
        "deploy", model.deploy, "Deploy a packed charm",
        "deploy . worker --config deployment-mode=worker --config enable-gpu=true",
    )  # fmt: skip
    it.add_argument("charm", help="a .charm file; . is this project's charm, packed if needed")
    it.add_argument("app", help="the application's name")
    it.add_argument("--config", action="append", default=[], metavar="KEY=VALUE")
    it.add_argument("--resource", action="append", default=[], metavar="NAME=PATH")
    it.add_argument("-n", "--units", type=int, default=1, metavar="N", help="how many units")
    it.add_argument(
        "--gpus", type=int, default=2, metavar="N", help="simulated GPUs of each unit (2)"
    )
    it.add_argument("--bare", action="store_true", help=BARE)
    for name, function, text in (
        ("integrate", model.integrate, "Relate two applications"),
        ("remove-relation", model.remove_relation, "Remove a relation"),
    ):
        it = add(name, function, text, f"{name} web:web-tsa worker:worker-tsa")
        it.add_argument("one", metavar="APP[:ENDPOINT]")
        it.add_argument("two", metavar="APP[:ENDPOINT]")
    it = add(
        "remove-application", model.remove_application, "Remove an application and its units",
        "remove-application worker",
    )  # fmt: skip
    it.add_argument("app")
    add("destroy", model.destroy, "Remove the lab completely", "destroy")


def add_setting_commands(add: Adder) -> None:
    """Add the commands for options, charms, resources and secrets."""
    it = add(
        "config", model.config, "Show, set or reset options", "config worker gpu-device-ids=1"
    )
    it.add_argument("app")
    it.add_argument("values", nargs="*", metavar="KEY[=VALUE]")
    it.add_argument("--reset", action="extend", type=split, default=[], metavar="KEY[,...]")
    it = add("refresh", model.refresh, "Upgrade an application's charm", "refresh worker")
    it.add_argument("app")
    it.add_argument("charm", nargs="?", help="a .charm file; default: this project's charm")
    it = add(
        "attach-resource", model.attach_resource, "Replace a resource file of an application",
        "attach-resource web concourse=./concourse.tgz",
    )  # fmt: skip
    it.add_argument("app")
    it.add_argument("resource", metavar="NAME=PATH")
    it = add(
        "secret", model.secret, "Add, change or grant a secret of the operator",
        "secret add worker-key private-key#file=./worker_key",
    )  # fmt: skip
    it.add_argument("verb", choices=("add", "update", "grant"))
    it.add_argument("name")
    it.add_argument("values", nargs="+", metavar="KEY=VALUE | KEY#file=PATH | APP")


def add_unit_commands(add: Adder) -> None:
    """Add the commands for units."""
    it = add("add-unit", model.add_unit, "Add units to an application", "add-unit worker")
    it.add_argument("app")
    it.add_argument("-n", "--units", type=int, default=1, metavar="N", help="how many")
    it = add("remove-unit", model.remove_unit, "Remove units", "remove-unit worker/1")
    it.add_argument("units", nargs="+", metavar="unit")
    it.add_argument("--force", action="store_true", help="without its hooks")
    it = add("run", model.run, "Run an action", "run worker/0 gpu-inventory")
    it.add_argument("unit")
    it.add_argument("action")
    it.add_argument("values", nargs="*", metavar="KEY=VALUE", help="the value is YAML")
    it = add("update-status", model.update_status, "Fire update-status", "update-status worker/0")
    it.add_argument("unit", nargs="?", default="", help="default: all units")
    it = add("resolved", model.resolved, "Run a unit's failed hook again", "resolved worker/0")
    it.add_argument("unit")
    it = add(
        "gpu", model.gpu, "Change a unit's simulated GPUs while it runs", "gpu lose worker/0 1"
    )
    it.add_argument(
        "verb",
        help="lose, restore, xid, hang, busy, memory, event, reset, add, set, mig, driver, "
        "bind, install, status ...",
    )
    it.add_argument("unit")
    it.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...",
        help="see VERB --help; other vendors' cards: install worker/0 --vendor amd --count 2",
    )  # fmt: skip


def add_look_commands(add: Adder) -> None:
    """Add the commands that only show something, and those of Concourse."""
    it = add("status", look.status, "Show the model as a table", "status --watch")
    it.add_argument("--watch", action="store_true", help="repeat every second")
    it = add("logs", look.logs, "Show a unit's log and its services' journal", "logs worker/0 -f")
    it.add_argument("unit")
    it.add_argument("-f", "--follow", action="store_true", help="keep printing new lines")
    it = add("shell", look.shell, "Open a root shell on a machine", "shell worker/0 nvidia-smi")
    it.add_argument("unit")
    it.add_argument("command", nargs=argparse.REMAINDER, help="run this instead of a shell")
    it = add("task", look.task, "Run a command as a CI task", "task -- ls -l /dev")
    it.add_argument(
        "--tag", action="append", help="a tag that the worker must have (gpu); '' for no tag"
    )
    it.add_argument("--param", action="append", default=[], metavar="KEY=VALUE")
    it.add_argument("command", nargs=argparse.REMAINDER)
    it = add("fly", look.fly, "Run Concourse's fly, logged in", "fly workers")
    it.add_argument("arguments", nargs=argparse.REMAINDER)
    it = add("fetch", look.fetch, "Download the real Concourse release", "fetch concourse")
    it.add_argument("what", choices=("concourse",))


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse a command's arguments; KEY=VALUE may come after its options, too."""
    parser = build()
    args, late = parser.parse_known_args(argv)
    if late and (not hasattr(args, "values") or any(item.startswith("-") for item in late)):
        parser.error(f"unrecognized arguments: {' '.join(late)}")
    if late:
        args.values += late
    return args


def main(argv: list[str]) -> int:
    """Run one command; return its exit status: 2 for wrong use, 1 for a failure."""
    # All arguments after `fly` are fly's own, including options before its command.
    fly = argv[:1] == ["fly"] and argv[1:2] not in ([], ["-h"], ["--help"])
    args = parse(argv[:1] if fly else argv)
    if fly:
        args.arguments = argv[1:]
    if os.geteuid() != 0:
        print("lab: machines need root: run it with sudo", file=sys.stderr)
        return WRONG_USE
    try:
        return args.function(args)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        if args.function.__module__ == model.__name__:
            print("lab: interrupted; the next command continues unfinished work")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: there is nothing left to print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
