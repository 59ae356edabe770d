# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Runs the agents until every unit has settled, and makes true what their hooks wrote."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable

from tests.lab.errors import LabError, MachineError, NoMachinesError
from tests.lab.juju import events
from tests.lab.juju.agent import Agent, Interruption, Outfitter, hook_name, unit_tag
from tests.lab.juju.commands import RUN_COMMANDS, Commands
from tests.lab.juju.context import HookContext
from tests.lab.juju.server import HookServer
from tests.lab.juju.store import Row, Store
from tests.lab.park import Park

# A failed hook runs again this often, then waits for `lab resolved` (Juju: forever, up to 5 min).
RETRIES = 3
RETRY_SECONDS = 2.0
HOOKTOOL = pathlib.Path(__file__).with_name("hooktool.c")


class Controller:
    """The model, its machines and its agents.

    Args:
        state_dir: the lab's directory.
        say: takes progress lines.
        retry_seconds: before a failed hook's first retry; doubled for each further one.
        outfitter: see Agent.
    """

    def __init__(
        self,
        state_dir: pathlib.Path,
        say: Callable[[str], None] = lambda _: None,
        retry_seconds: float = RETRY_SECONDS,
        outfitter: Outfitter = lambda _machine, _outfit: None,
    ):
        self.state_dir = state_dir.resolve()
        self.shared = self.state_dir / "shared"
        self.logs = self.state_dir / "logs"
        for directory in (self.shared / "charms", self.shared / "resources", self.logs):
            directory.mkdir(parents=True, exist_ok=True)
        self.state_dir.chmod(0o700)
        self.store = Store(self.state_dir / "model.sqlite")
        self.park = Park(self.state_dir)
        self.say = say
        self._retry_seconds = retry_seconds
        self._outfitter = outfitter
        self._commands = Commands(self.store)
        self._server = HookServer(self.shared / "hooks.sock", self._commands.execute)
        self._agents: dict[str, Agent] = {}
        self._retry_at: dict[int, float] = {}
        self._stopping = False

    def close(self) -> None:
        """Close the model's file."""
        self.store.close()

    def log_path(self, unit: str) -> pathlib.Path:
        """The unit's log, of juju-log, the hooks' output and the agent."""
        return self.logs / f"unit-{unit_tag(unit)}.log"

    def agent(self, unit: str) -> Agent:
        """The unit's agent."""
        if unit not in self._agents:
            self._agents[unit] = Agent(
                self.store,
                self.park,
                self._server,
                unit,
                self.shared,
                self.say,
                self.log_path(unit),
                self._outfitter,
            )
        return self._agents[unit]

    def fire(self, unit: str, kind: str, interruption: Interruption | None = None) -> None:
        """Queue an event for a unit, and maybe kill its hook at a given moment; then settle."""
        with self.store.transaction():
            if kind == "update-status":
                events.update_status(self.store, unit)
            else:
                events.notify(self.store, unit, kind)
        self.agent(unit).interruption = interruption
        self.settle()

    def settle(self, until: Callable[[], bool] = lambda: True, seconds: float = 60) -> None:
        """Run the agents until no unit has anything to do but those whose hooks keep failing.

        Args:
            until: a condition to wait for first, such as a change that a machine makes.
            seconds: how long that is waited for.

        Raises:
            KeyboardInterrupt: hooks that ran were killed and count as failed.
        """
        self._stopping = False
        deadline = time.monotonic() + seconds
        self._install_hooktool()
        self._recover()
        self._notice_addresses()
        running: dict[concurrent.futures.Future[None], str] = {}
        with self._server, concurrent.futures.ThreadPoolExecutor(max_workers=32) as pool:
            try:
                while (
                    self._step(pool, running)
                    or self._notice_addresses()
                    or _is_to_come(until, deadline)
                ):
                    pass
            except BaseException:
                self._stop(running)
                raise
            finally:
                self._commands.end()

    def _install_hooktool(self) -> None:
        tool = self.shared / "hooktool"
        if not self.store.value("SELECT 1 FROM application WHERE played = ''"):
            return
        if tool.exists() and tool.stat().st_mtime > HOOKTOOL.stat().st_mtime:
            return
        # By rename: it may be running at this moment.
        new = self.shared / "hooktool.new"
        flags = ["-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror"]
        command = ["gcc", *flags, "-o", new, HOOKTOOL]
        try:
            subprocess.run(command, check=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            why = f"cannot compile the hook commands, is gcc installed? {error}"
            raise LabError(why) from error
        new.replace(tool)

    def _step(
        self,
        pool: concurrent.futures.Executor,
        running: dict[concurrent.futures.Future[None], str],
    ) -> bool:
        """Start all operations that can start, wait a little; return False if none is left."""
        for event in self._runnable(set(running.values())):
            running[pool.submit(self._work, event)] = event["unit"]
        if not running:
            if not self._waits_for_retry():
                return False
            time.sleep(0.1)
            return True
        done, _ = concurrent.futures.wait(
            running, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            del running[future]
            future.result()
        return True

    def _notice_addresses(self) -> bool:
        """Tell the units whose machines have other addresses than before. Return if any has."""
        changed = False
        for unit in self.store.column("SELECT name FROM unit WHERE life = 'alive'"):
            if self.agent(unit).notice_addresses():
                self.say(f"{unit}: its machine's addresses have changed")
                with self.store.transaction():
                    events.notify(self.store, unit, "config-changed")
                changed = True
        return changed

    def _stop(self, running: dict[concurrent.futures.Future[None], str]) -> None:
        self._stopping = True
        while running:
            for unit in running.values():
                self.agent(unit).kill_hook()
            done, _ = concurrent.futures.wait(running, timeout=0.5)
            for future in done:
                del running[future]

    def _recover(self) -> None:
        """A lab command that was killed left hooks behind: they have failed."""
        for event in self.store.rows("SELECT * FROM event WHERE state = 'running'"):
            self.agent(event["unit"]).kill_stale_hook(event)
            self._set_state(event, "failed")
        self._commands.end()

    def _set_state(self, event: Row, state: str) -> None:
        self.store.do("UPDATE event SET state = ? WHERE id = ?", state, event["id"])

    def _heads(self) -> list[Row]:
        """Each unit's next event."""
        sql = (
            "SELECT event.*, machine FROM event JOIN unit ON unit = name "
            "WHERE id IN (SELECT min(id) FROM event WHERE state != 'late' GROUP BY unit) "
            "ORDER BY id"
        )
        return self.store.rows(sql)

    def _runnable(self, running: set[str]) -> list[Row]:
        """What can start beside the units that run: one thing at a time on each machine."""
        # A running unit may have been removed at this moment.
        machine = "SELECT machine FROM unit WHERE name = ?"
        busy = {self.store.value(machine, unit) for unit in running}
        found: list[Row] = []
        for head in self._heads():
            event: Row | None = head
            if head["state"] == "failed" and not self._may_retry(head):
                # Actions and commands run although a hook has failed.
                sql = "SELECT * FROM event WHERE unit = ? AND kind IN (?, ?) ORDER BY id LIMIT 1"
                event = self.store.row(sql, head["unit"], "action", RUN_COMMANDS)
            if event and head["machine"] not in busy:
                busy.add(head["machine"])
                found.append(event)
        return found

    def _may_retry(self, event: Row) -> bool:
        due = self._retry_at.get(event["id"], 0) <= time.monotonic()
        return event["attempts"] < RETRIES and due

    def _waits_for_retry(self) -> bool:
        return any(h["state"] == "failed" and h["attempts"] < RETRIES for h in self._heads())

    def _work(self, event: Row) -> None:
        """Carry out one event, in a thread of its own."""
        self._set_state(event, "running")
        if event["kind"] in (events.PROVISION, events.TEARDOWN):
            self._own_work(event)
            return
        agent, unit = self.agent(event["unit"]), event["unit"]
        name = hook_name(self.store, event)
        self._set_agent(unit, "executing", f"running {name}")
        begun = time.monotonic()
        agent.log("DEBUG", f"agent running {name}")
        succeeded, context = agent.run_hook(event, self._commands.text(event))
        seconds = f"{time.monotonic() - begun:.1f} s"
        if event["kind"] == RUN_COMMANDS:
            self._finish_commands(event, context, succeeded)
            self.say(f"{unit}: {name} ({seconds})")
        elif event["kind"] == "action":
            self._finish_action(event, context, succeeded)
        elif succeeded:
            self._finish(event, context)
            self.say(f"{unit}: {name} ({seconds})")
        else:
            self._fail(event, name)

    def _set_agent(self, unit: str, status: str, message: str = "") -> None:
        sql = "UPDATE unit SET agent = ?, agent_message = ? WHERE name = ?"
        self.store.do(sql, status, message, unit)

    def _own_work(self, event: Row) -> None:
        """The agent's own events: its machine comes or goes."""
        agent, unit = self.agent(event["unit"]), event["unit"]
        try:
            if event["kind"] == events.TEARDOWN:
                agent.teardown()
            else:
                agent.provision()
        except NoMachinesError as error:
            self.say(f"{unit}: {error}")
            agent.log("ERROR", str(error))
            self._fail(event, event["kind"], attempts=RETRIES)
            return
        except (LabError, OSError) as error:
            agent.log("ERROR", str(error))
            self._fail(event, event["kind"])
            return
        with self.store.transaction():
            self.store.do("DELETE FROM event WHERE id = ?", event["id"])
            if event["kind"] == events.TEARDOWN:
                events.unit_gone(self.store, unit)
                self.say(f"{unit}: removed")

    def _finish(self, event: Row, context: HookContext) -> None:
        """The hook has succeeded: its writes and what follows from it, in one transaction."""
        store, unit, relation = self.store, event["unit"], event["relation"]
        with store.transaction():
            store.do("DELETE FROM event WHERE id = ?", event["id"])
            context.commit()
            if event["kind"] == "relation-created":
                events.enter(store, relation, unit)
            elif event["kind"] == "relation-departed":
                sql = "DELETE FROM seen WHERE relation = ? AND unit = ? AND remote = ?"
                store.do(sql, relation, unit, event["remote_unit"])
            elif event["kind"] == "relation-broken":
                events.left(store, relation, unit)
            if relation is not None:
                events.forget_relation(store, relation)
            if (
                event["kind"] == "start"
                and store.unit(unit)["message"] == "installing charm software"
            ):
                store.do("UPDATE unit SET status = 'unknown', message = '' WHERE name = ?", unit)
            self._set_agent(unit, "idle")
        if context.reboot:
            self._reboot(unit)

    def _reboot(self, unit: str) -> None:
        self.say(f"{unit}: rebooting its machine")
        try:
            self.agent(unit).machine().reboot()
        except MachineError as error:
            self.agent(unit).log("ERROR", str(error))
        self._started(self.store.unit(unit)["machine"])

    def reboot(self, unit: str) -> None:
        """Reboot the unit's machine, as its operator might; then settle."""
        self._reboot(unit)
        self.settle()

    def wake(self) -> None:
        """Boot machines that are down, as after a reboot of the host; does not settle."""
        for name in self.park.names():
            if self.park.get(name).is_up():
                continue
            self.say(f"booting machine {name}")
            self.park.up(name)
            self._started(name)

    def _started(self, machine: str) -> None:
        with self.store.transaction():
            self.store.do("UPDATE unit SET rebooted = 1 WHERE machine = ?", machine)
            for unit in self.store.column("SELECT name FROM unit WHERE machine = ?", machine):
                events.notify(self.store, unit, "start")

    def _fail(self, event: Row, name: str, attempts: int = 0) -> None:
        """The hook has failed: its writes are dropped, it will be run again.

        Args:
            event: the hook's.
            name: the hook's, as Juju has it.
            attempts: how many tries that counts for in all; 0: one more than before.
        """
        unit = event["unit"]
        # A Ctrl-C does not count as a try.
        attempts = attempts or event["attempts"] + (0 if self._stopping else 1)
        self._retry_at[event["id"]] = time.monotonic() + self._retry_seconds * 2 ** (attempts - 1)
        with self.store.transaction():
            sql = "UPDATE event SET state = 'failed', attempts = ? WHERE id = ?"
            self.store.do(sql, attempts, event["id"])
            self._set_agent(unit, "error", f'hook failed: "{name}"')
        again = (
            "is run again"
            if attempts < RETRIES
            else f"stays so: lab logs {unit}, lab resolved {unit}"
        )
        self.agent(unit).log("ERROR", f'agent hook "{name}" failed')
        if self._stopping:
            self.say(f'{unit}: "{name}" was interrupted and will be run again')
        else:
            self.say(f'{unit}: hook failed: "{name}" ({attempts} of {RETRIES}), {again}')

    def _finish_action(self, event: Row, context: HookContext, succeeded: bool) -> None:
        failed = not succeeded or context.action_failure is not None
        message = context.action_failure or ""
        if context.exit_status:
            message = f"exit status {context.exit_status}"
            context.action_results["return-code"] = context.exit_status
        with self.store.transaction():
            self.store.do("DELETE FROM event WHERE id = ?", event["id"])
            if succeeded:
                context.commit()
            self.store.do(
                "UPDATE action SET status = ?, results = ?, message = ? WHERE id = ?",
                "failed" if failed else "completed",
                json.dumps(context.action_results),
                message,
                event["action"],
            )
            self._set_idle(event["unit"])

    def _finish_commands(self, event: Row, context: HookContext, succeeded: bool) -> None:
        """What they wrote counts, whatever their exit status."""
        with self.store.transaction():
            self.store.do("DELETE FROM event WHERE id = ?", event["id"])
            if succeeded or context.exit_status:
                context.commit()
            self._set_idle(event["unit"])
        self._commands.answer(event, context, succeeded)
        if context.reboot:
            self._reboot(event["unit"])

    def _set_idle(self, unit: str) -> None:
        if not self.store.value("SELECT 1 FROM event WHERE unit = ? AND state = 'failed'", unit):
            self._set_agent(unit, "idle")

    def destroy(self) -> None:
        """Remove machines, network, model and logs: nothing stays. May be called twice."""
        self.store.close()
        self.park.destroy()
        shutil.rmtree(self.state_dir, ignore_errors=True)


def _is_to_come(until: Callable[[], bool], deadline: float) -> bool:
    if until() or time.monotonic() > deadline:
        return False
    # After it all machines are asked for their addresses, which costs a program for each.
    time.sleep(1)
    return True
