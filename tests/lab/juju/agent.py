# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A unit's agent: it makes the machine, unpacks the charm and runs its dispatch as Juju does."""

import dataclasses
import json
import pathlib
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.lab.errors import CommandError, MachineError
from tests.lab.juju import addresses, events, params, played
from tests.lab.juju.commands import RUN_COMMANDS
from tests.lab.juju.context import HookContext, ToolError
from tests.lab.juju.server import TOOLS, HookServer
from tests.lab.juju.store import Row, Store
from tests.lab.juju.tools import now
from tests.lab.machines import CLEAN_ENV, Machine
from tests.lab.park import Park

JUJU_VERSION = "4.0.15"
HOOK_SECONDS = 900.0
STRACE = "/usr/bin/strace"
ADDRESS_SECONDS = 5.0
# What the machines see of the lab: the hook socket and client, charms and resources.
SHARED = "/var/lib/juju/lab"
TOOLS_DIR = "/var/lib/juju/tools/lab"
# The model's, by the names of its options without `juju-` and `-proxy`; tests change them.
PROXIES = dict.fromkeys(("HTTP", "HTTPS", "FTP", "NO"), "")
Outfitter = Callable[[Machine, dict[str, Any]], None]
UNPACK = """
set -eu
rm -rf "$1.new"
mkdir -p "$1.new" "$3"
unzip -q "$2" -d "$1.new"
if [ -e "$1/.unit-state.db" ]; then mv "$1/.unit-state.db" "$1.new/"; fi
rm -rf "$1"
mv "$1.new" "$1"
shift 2
dir=$1
shift
for tool in "$@"; do ln -sfn /var/lib/juju/lab/hooktool "$dir/$tool"; done
ln -sfn /var/lib/juju/lab/hooktool /usr/bin/juju-exec
"""


@dataclasses.dataclass(frozen=True)
class Interruption:
    """When to kill -9 a hook, for tests.

    Attributes:
        after_seconds: after so many, with all that it has started.
        at_command: at its n-th hook command, in the same way.
        at_call: before the n-th system call of this name that its own process makes; what it has
            started goes on. It takes strace.
    """

    after_seconds: float | None = None
    at_command: int | None = None
    at_call: tuple[str, int] | None = None

    def wrap(self, program: list[str]) -> list[str]:
        """The command that runs the hook's program."""
        if self.at_call is None:
            return program
        name, number = self.at_call
        kill = f"inject={name}:signal=KILL:when={number}"
        return [STRACE, "-qq", "-o", "/dev/null", "-e", f"trace={name}", "-e", kill, *program]


def unit_tag(unit: str) -> str:
    """web/0 as Juju writes it in the names of files: web-0."""
    return unit.replace("/", "-")


class Agent:
    """Runs one unit's events, one at a time.

    Args:
        store: the model.
        park: the machines.
        server: answers the hook commands.
        unit: its name.
        shared: the host's directory that machines see as SHARED.
        say: takes progress lines.
        log_path: the unit's log file.
        outfitter: puts into a new machine what is there before the charm; takes the machine and
            what the application was deployed with.
    """

    def __init__(
        self,
        store: Store,
        park: Park,
        server: HookServer,
        unit: str,
        shared: pathlib.Path,
        say: Callable[[str], None],
        log_path: pathlib.Path,
        outfitter: Outfitter,
    ):
        self._store = store
        self._park = park
        self._server = server
        self._unit = unit
        self._app = events.app_of(unit)
        self._shared = shared
        self._say = say
        self._log_path = log_path
        self._outfitter = outfitter
        self._hook_unit = ""
        self._killed = threading.Event()
        self.interruption: Interruption | None = None
        # By the hook's name: of its next run alone.
        self.interruptions: dict[str, Interruption] = {}

    @property
    def charm_dir(self) -> str:
        """Where the charm is unpacked in the machine."""
        return f"/var/lib/juju/agents/unit-{unit_tag(self._unit)}/charm"

    @property
    def _machine_name(self) -> str:
        return str(self._store.unit(self._unit)["machine"])

    def log(self, level: str, message: str) -> None:
        """Append to the unit's log."""
        with open(self._log_path, "a", encoding="utf-8") as file:
            for line in message.splitlines() or [""]:
                file.write(f"{now()} {level} unit.{self._unit} {line}\n")

    def machine(self) -> Machine:
        """The unit's machine, booted when it is down."""
        machine = self._park.get(self._machine_name)
        if not machine.is_up():
            self._say(f"{self._unit}: booting machine {machine.name}")
            machine = self._park.up(machine.name)
        return machine

    def provision(self) -> None:
        """Make the machine and unpack the charm."""
        app = self._store.application(self._app)
        if app["played"]:
            address = played.load(app["played"]).provision(self._park)
        else:
            name, binds = self._machine_name, json.loads(app["binds"])
            if name not in self._park.names():
                self._say(f"{self._unit}: making machine {name}")
            machine = self._park.up(name, binds, {SHARED: self._shared})
            self._outfitter(machine, json.loads(app["outfit"]))
            address = machine.address
            self._wait_for_addresses()
            self.unpack()
        sql = "UPDATE unit SET address = ?, status = 'maintenance', message = ? WHERE name = ?"
        self._store.do(sql, address, "installing charm software", self._unit)

    def notice_addresses(self) -> bool:
        """Look at the machine's addresses, as its agent does. Return whether they have changed."""
        name = self._machine_name
        if name not in self._park.names() or not self._park.get(name).is_up():
            return False
        try:
            return addresses.note(self._store, self._unit, self._park.get(name))
        except MachineError:  # It goes down or boots just now.
            return False

    def _wait_for_addresses(self) -> None:
        deadline = time.monotonic() + ADDRESS_SECONDS
        while not self.notice_addresses() and time.monotonic() < deadline:
            time.sleep(0.05)

    def unpack(self) -> None:
        """Put the application's present charm, and the hook commands, into the machine."""
        charm = pathlib.Path(self._store.application(self._app)["charm"])
        arguments = [self.charm_dir, f"{SHARED}/charms/{charm.name}", TOOLS_DIR, *TOOLS]
        self.machine().enter("/bin/sh", "-c", UNPACK, "sh", *arguments)

    def teardown(self) -> None:
        """Remove the machine, or from one that other units are on, the charm alone."""
        sql = "SELECT 1 FROM unit WHERE machine = ? AND name != ?"
        if self._store.value(sql, self._machine_name, self._unit):
            self.machine().enter("/bin/rm", "-rf", str(pathlib.PurePath(self.charm_dir).parent))
        else:
            self._park.remove(self._machine_name)

    def run_hook(self, event: Row, script: str = "") -> tuple[bool, HookContext]:
        """Run an event's hook, or this script in its stead; commits nothing.

        Returns:
            Whether it succeeded, and its output.
        """
        context = HookContext(self._store, self._unit, event, self._juju_log, self._action_log)
        self._killed.clear()
        context.action_failure = self._action_problem(event)
        if context.action_failure:
            return False, context
        app = self._store.application(self._app)
        try:
            if app["played"]:
                played.load(app["played"]).handle(played.Hook(context, self._park), event["kind"])
                return True, context
            if event["kind"] == "upgrade-charm":
                self.unpack()
            return self._dispatch(event, context, script), context
        except (MachineError, ToolError) as error:
            self.log("ERROR", str(error))
            return False, context

    def _action_problem(self, event: Row) -> str | None:
        """Why the unit cannot run an action that it was asked for; None for other events."""
        sql = "SELECT name, params FROM action WHERE id = ?"
        action = self._store.row(sql, event["action"])
        if not action:
            return None
        name, given = action["name"], json.loads(action["params"])
        spec = self._store.meta(self._app)["actions"].get(name)
        return params.problem(name, spec, given) or None

    def _dispatch(self, event: Row, context: HookContext, script: str) -> bool:
        self._hook_unit = f"lab-hook-{unit_tag(self._unit)}-{event['id']}"
        machine = self.machine()
        timer = None
        # It is meant for the hook that a test has fired, whatever comes before that one.
        aside = self.interruption if script else None
        kill = self.interruptions.pop(hook_name(self._store, event), self.interruption)
        self.interruption = None if script else kill
        if self.interruption and self.interruption.after_seconds is not None:
            timer = threading.Timer(self.interruption.after_seconds, self.kill_hook)
            timer.start()
        program = ["/bin/bash", "-c", script] if script else [f"{self.charm_dir}/dispatch"]
        if self.interruption:
            program = self.interruption.wrap(program)
        argv = ["/usr/bin/env", "-C", self.charm_dir, *program]
        env = self._environment(event, context)
        try:
            with self._server.serving(context, self._before_command):
                done = machine.run(
                    argv, env, timeout=HOOK_SECONDS, check=False, unit=self._hook_unit
                )
        except CommandError as error:
            self.log("ERROR", f"{error}\n{error.output}")
            return False
        finally:
            self._hook_unit = ""
            self.interruption = aside
            if timer:
                timer.cancel()
        for line in (done.stdout + done.stderr).splitlines():
            self.log("INFO", f"{hook_name(self._store, event)} {line}")
        context.exit_status, context.said = done.returncode, (done.stdout, done.stderr)
        return done.returncode == 0 and not self._killed.is_set()

    def _before_command(self, context: HookContext) -> None:
        """Kill the hook at the command at which a test wants it."""
        if self.interruption and self.interruption.at_command == context.commands:
            self.kill_hook()

    def kill_hook(self) -> None:
        """SIGKILL the hook that runs now, with all that it has started."""
        hook_unit = self._hook_unit
        if hook_unit:
            self._killed.set()
            self._park.get(self._machine_name).kill_unit(hook_unit)

    def kill_stale_hook(self, event: Row) -> None:
        """Kill what a lab command that ended badly has left running of a hook."""
        name = self._machine_name
        if name in self._park.names() and self._park.get(name).is_up():
            hook_unit = f"lab-hook-{unit_tag(self._unit)}-{event['id']}"
            self._park.get(name).kill_unit(hook_unit)

    def _juju_log(self, level: str, message: str) -> None:
        self.log(level, f"juju-log {message}")

    def _action_log(self, message: str) -> None:
        self._say(f"{self._unit}: {message}")

    def _environment(self, event: Row, context: HookContext) -> dict[str, str]:
        name = hook_name(self._store, event)
        action = event["kind"] == "action"
        tag = unit_tag(self._unit)
        env = {
            "APT_LISTCHANGES_FRONTEND": "none",
            "CHARM_DIR": self.charm_dir,
            "CLOUD_API_VERSION": "",
            "DEBIAN_FRONTEND": "noninteractive",
            "HOME": "/root",
            "JUJU_AGENT_SOCKET_ADDRESS": f"@/var/lib/juju/agents/unit-{tag}/agent.socket",
            "JUJU_AGENT_SOCKET_NETWORK": "unix",
            "JUJU_API_ADDRESSES": "10.77.0.1:17070",
            "JUJU_AVAILABILITY_ZONE": "",
            "JUJU_CHARM_DIR": self.charm_dir,
            "JUJU_CONTEXT_ID": context.id,
            "JUJU_DISPATCH_PATH": f"actions/{name}" if action else f"hooks/{name}",
            "JUJU_HOOK_NAME": "" if action else name,
            "JUJU_MACHINE_ID": self._store.unit(self._unit)["machine_id"],
            "JUJU_MODEL_NAME": "lab",
            "JUJU_MODEL_UUID": self._store.model_uuid,
            "JUJU_PRINCIPAL_UNIT": "",
            "JUJU_UNIT_NAME": self._unit,
            "JUJU_VERSION": JUJU_VERSION,
            "LANG": "C.UTF-8",
            "PATH": f"{TOOLS_DIR}:{CLEAN_ENV['PATH']}:/snap/bin",
            "TERM": "tmux-256color",
        }
        env |= {f"JUJU_CHARM_{kind}_PROXY": value for kind, value in PROXIES.items()}
        if event["kind"] == RUN_COMMANDS:
            env["JUJU_HOOK_NAME"] = ""
            del env["JUJU_DISPATCH_PATH"]
        return env | self._event_environment(event)

    def _event_environment(self, event: Row) -> dict[str, str]:
        env: dict[str, str] = {}
        if event["relation"] is not None:
            end = events.own_end(self._store, event["relation"], self._app)
            assert end, "a relation stays until its last event has been handled"
            env["JUJU_RELATION"] = end["endpoint"]
            env["JUJU_RELATION_ID"] = f"{end['endpoint']}:{event['relation']}"
            env["JUJU_REMOTE_APP"] = event["remote_app"]
            env["JUJU_REMOTE_UNIT"] = event["remote_unit"]
            if event["departing"]:
                env["JUJU_DEPARTING_UNIT"] = event["departing"]
        if event["secret"]:
            env["JUJU_SECRET_ID"] = f"secret:{event['secret']}"
            env["JUJU_SECRET_LABEL"] = ""
            if event["revision"]:
                env["JUJU_SECRET_REVISION"] = str(event["revision"])
        if event["action"]:
            env["JUJU_ACTION_NAME"] = hook_name(self._store, event)
            env["JUJU_ACTION_UUID"] = event["action"]
            env["JUJU_ACTION_TAG"] = f"action-{event['action']}"
        return env


def hook_name(store: Store, event: Row) -> str:
    """The hook's name as Juju has it: `worker-tsa-relation-changed`, or the action's."""
    if event["kind"] == "action":
        return str(store.value("SELECT name FROM action WHERE id = ?", event["action"]))
    if event["relation"] is None:
        return str(event["kind"])
    end = events.own_end(store, event["relation"], events.app_of(event["unit"]))
    return f"{end['endpoint']}-{event['kind']}" if end else str(event["kind"])
