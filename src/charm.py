#!/usr/bin/env python3
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Juju's front door: events -> reconcile -> status. No work is done here."""

import typing

import ops

import actions
import config
import plan
import status
from ci import concourse_release, concourse_web, concourse_worker, local_postgresql
from found import Found, Machine, RememberedIds, Web
from gpu import detect, foreign
from host import facts, memory, network
from machine import download, files, packages
from oci import cordons, leases, nvidia, quarantine, wrapper
from relations import juju, peers, postgresql, tsa
from selftest import automatic, unit

# How long a worker that is being removed may take to finish its builds.
RETIRE_SECONDS: typing.Final = 300
# The same where its web is gone already, which then takes no builds' results any more.
FAREWELL_SECONDS: typing.Final = 30
OTHER_ENDPOINTS: typing.Final = (postgresql.ENDPOINT, peers.ENDPOINT)
# What the operator must mend; each text says how.
BLOCKING: typing.Final = (
    config.OptionError, concourse_release.ReleaseError, download.DownloadError,
    local_postgresql.DatabaseError, nvidia.ConfigError, unit.SelftestError,
)  # fmt: skip


class GpuCiWorkerCharm(ops.CharmBase):
    """A machine that runs Concourse's web, its worker, or both; CI tasks get its GPUs."""

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._lines: list[status.Line] = []
        observe, on = framework.observe, self.on
        observe(on.collect_unit_status, self._on_collect_unit_status)
        for event in (
            on.install, on.start, on.config_changed, on.upgrade_charm, on.update_status,
            on.leader_elected, on.secret_changed,
        ):  # fmt: skip
            observe(event, self._reconcile)
        for endpoint in (*tsa.WEB_ENDPOINTS, *tsa.WORKER_ENDPOINTS, *OTHER_ENDPOINTS):
            observe(on[endpoint].relation_created, self._reconcile)
            observe(on[endpoint].relation_changed, self._reconcile)
            observe(on[endpoint].relation_departed, self._on_relation_departed)
            observe(on[endpoint].relation_broken, self._reconcile)
        observe(on.stop, self._on_stop)
        observe(on.remove, self._on_remove)
        for name in actions.ALL:
            observe(on[name].action, self._on_action)

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        for line in self._lines:
            event.add_status(ops.StatusBase.from_name(line.kind.value, line.text))

    def _on_relation_departed(self, event: ops.RelationDepartedEvent) -> None:
        # Web accepts this worker's key until the -broken that follows has been committed, so this
        # is the last moment at which the worker can say goodbye.
        if event.departing_unit == self.unit and event.relation.name in tsa.WORKER_ENDPOINTS:
            self._leave()
        self._reconcile(event)

    def _on_stop(self, _event: ops.StopEvent) -> None:
        self._leave()

    def _on_remove(self, _event: ops.RemoveEvent) -> None:
        rooms = concourse_worker, concourse_web, automatic, wrapper, concourse_release, network
        for room in rooms:
            room.remove()
        packages.remove_installed()
        files.ensure_absent(memory.STATE)

    def _on_action(self, event: ops.ActionEvent) -> None:
        name = event.handle.kind.removesuffix("_action").replace("_", "-")
        try:
            found = self._look()
            call = actions.Call(found, plan.make(found), event.params, event.log)
            event.set_results(actions.ALL[name](call))
        except actions.ActionError as error:
            event.fail(str(error))
            if error.results:
                event.set_results(error.results)
        except (config.OptionError, facts.UnknownError) as error:
            event.fail(str(error))
            return
        if name in actions.CHANGING:
            self._reconcile(event)

    def _leave(self) -> None:
        memory.set_leaving()
        concourse_worker.retire(RETIRE_SECONDS, self._say)

    def _say(self, text: str) -> None:
        self.unit.status = ops.MaintenanceStatus(text)

    def _reconcile(self, _event: ops.EventBase) -> None:
        try:
            found = self._look()
            wanted = plan.make(found)
            wanted = self._apply(found, wanted)
        except (download.UnreachableError, facts.UnknownError) as error:
            self._lines = [status.Line(status.Kind.WAITING, str(error))]
        except BLOCKING as error:
            self._lines = [status.Line(status.Kind.BLOCKED, str(error))]
        else:
            running = status.Running(concourse_web.healthy(), concourse_worker.healthy())
            self._lines = status.lines(wanted, running, found.web.refused + found.tsa.refused)

    def _look(self) -> Found:
        """Everything that a decision about this unit rests on."""
        options = juju.read_options(self.model)
        asked = options.enable_gpu and options.has_worker
        inventory = detect.detect(options.gpu_vendor) if asked else None
        return Found(
            options=options,
            name=self.unit.name.replace("/", "-"),
            address=juju.address(self.model),
            machine=facts.machine() if options.has_worker else Machine(facts.architecture()),
            inventory=inventory,
            cordoned=foreign.look(inventory, leases.holders, cordons.reasons) if inventory else (),
            remembered=memory.remembered_ids() if asked else RememberedIds(),
            quarantined=quarantine.read() if asked else (),
            verdict=automatic.verdict() if asked else None,
            tarball=juju.resource(self.model, juju.TARBALL),
            wheels=juju.resource(self.model, juju.WHEELS) if asked else "",
            installed=release.version if (release := concourse_release.installed()) else "",
            tsa=tsa.read_webs(self.model),
            web=self._look_at_web(options) if options.has_web else Web(),
            leaving=memory.is_leaving(),
        )

    def _look_at_web(self, options: config.Options) -> Web:
        related, database = postgresql.read(self.model)
        shared = peers.web_secrets(self.model, concourse_web.new_secrets)
        worker_keys, refused = tsa.read_worker_keys(self.model)
        if options.has_worker:
            worker_keys += (concourse_worker.ensure_key(options.worker_private_key),)
        return Web(
            database_related=related,
            database=database,
            secrets=shared,
            tsa_public_key=concourse_web.public_key(shared) if shared else "",
            worker_keys=worker_keys,
            refused=refused,
        )

    def _apply(self, found: Found, wanted: plan.Plan) -> plan.Plan:
        """Make the machine what the plan says, room by room, and tell the others.

        Returns:
            The plan as it is after the self-test.
        """
        release = wanted.release and concourse_release.ensure(wanted.release, self._say)
        if release:
            self.unit.set_workload_version(release.version)
            self._apply_web(found, wanted, release.version)
        elif wanted.web is None:
            concourse_web.remove()
        repaired = isinstance(wanted.gpu, plan.GpuPlan) and wrapper.apply(wanted.gpu)
        if found.inventory and found.inventory.gpus:
            cordons.ensure(found.cordoned)
        found = automatic.ensure(found, wanted, repaired=repaired, progress=self._say)
        wanted = plan.make(found)
        self._apply_worker(found, wanted)
        if wanted.gpu is None:
            wrapper.remove()
        memory.remember_ids(wanted.remember)
        return wanted

    def _apply_web(self, found: Found, wanted: plan.Plan, version: str) -> None:
        postgresql.request(self.model)
        if isinstance(wanted.web, plan.WebPlan):
            concourse_web.apply(wanted.web, self._say)
            self.unit.set_ports(wanted.web.port, config.TSA_PORT)
            tsa.publish_web(self.model, found.address, found.web.tsa_public_key, version)
        elif wanted.web is None:
            concourse_web.remove()
            self.unit.set_ports()

    def _apply_worker(self, found: Found, wanted: plan.Plan) -> None:
        if found.options.has_worker and not found.leaving:
            network.ensure()
            key = concourse_worker.ensure_key(found.options.worker_private_key)
            tsa.publish_worker(self.model, key)
        if isinstance(wanted.worker, plan.WorkerPlan):
            concourse_worker.apply(wanted.worker, self._say)
        elif wanted.worker is None:
            concourse_worker.retire(FAREWELL_SECONDS, self._say)
            concourse_worker.remove()


if __name__ == "__main__":
    ops.main(GpuCiWorkerCharm)
