# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""When the watch ends leases; tests/functional/test_lease_ends.py has whose these are."""

import threading
import time

from gpu_agent.health.gone_leases import Returned
from gpu_agent.model.observations import Holding, Moment
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import JOB, Holder

GONE = Holding("gpu-run-1.scope", "", ("GPU-0",), 1.0, in_use=False, kind=JOB)


def hold(store):
    with store as table:
        holder = Holder("", ["GPU-0"], [], exclusive=False, since=1)
        holder.kind, holder.execs = JOB, True
        table.holders[GONE.container] = holder


def turn(part, now, holdings=(GONE,)):
    """A turn, to the end of what it begins."""
    before = threading.active_count()
    part.turn(Moment(now, now, (), holdings=holdings), ())
    while threading.active_count() > before:
        time.sleep(0.01)


def test_what_can_not_be_ended_is_tried_again_minutes_later(tmp_path):
    store = Store(str(tmp_path / "run" / "leases"))
    table = tmp_path / "run" / "leases" / "leases.json"
    part = Returned(store.folder, str(tmp_path / "oci.log"))
    hold(store)
    turn(part, 1, holdings=None)
    assert [*store.read().holders] == [GONE.container]
    turn(part, 2)
    assert [*store.read().holders] == []
    whole = table.read_text()
    table.write_text("{")
    turn(part, 20)
    table.write_text(whole)
    hold(store)
    turn(part, 40)
    assert [*store.read().holders] == [GONE.container]
    turn(part, 321)
    assert [*store.read().holders] == []
