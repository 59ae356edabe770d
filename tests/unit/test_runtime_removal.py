# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The wrapper's removal: the store stays as long as somebody in it may have a GPU."""

import json
import subprocess

import pytest

from gpu_agent import paths as wrapper
from gpu_agent.runtime import install, policy
from gpu_runtime.holder_usage import Host
from gpu_runtime.lease_store import Store
from gpu_runtime.lease_table import Holder
from gpu_runtime.refusal import Refused
from tests.unit.grants import content

PLACES = {
    "FRONT": "opt/bin/runc",
    "LINK": "usr/runc-gpu-wrapper",
    "HOME": "opt",
    "CONFIG": "etc",
    "POLICY": "etc/policy.json",
    "LOG": "log/gpu-ci/oci.log",
    "RUN": "run",
    "STORE": "run/leases",
    "EXTERNAL": "run/cordons",
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    for name, place in PLACES.items():
        monkeypatch.setattr(wrapper, name, tmp_path / place)
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    wrapper.FRONT.write_text("")
    return tmp_path


def hold(call, bundle="/nowhere"):
    with Store(str(wrapper.STORE)) as table:
        holder = Holder(bundle, ["GPU-0"], [], exclusive=True, since=Host.now())
        holder.keeper = call
        table.holders["ID"] = holder


def test_a_store_in_which_somebody_has_a_gpu_stays_until_that_is_over(machine):
    with subprocess.Popen(["sleep", "1000"]) as owner:
        hold((owner.pid, Host()._started(owner.pid)))
        assert install.remove()
        assert not wrapper.FRONT.exists()
        assert [*Store(str(wrapper.STORE)).read().holders] == ["ID"]
        assert not install.remove(), "nothing is left to remove yet"
        owner.kill()
    assert install.remove()
    assert not wrapper.RUN.exists()
    assert not install.remove()


def test_its_logs_go_and_the_receipts_beside_them_stay(machine):
    logs = [wrapper.LOG.with_name(name) for name in ("oci.log", "oci.log.1", "receipts.log")]
    for log in logs:
        log.write_text("{}\n")
    assert install.remove()
    assert [*wrapper.LOG.parent.iterdir()] == [logs[2]]
    logs[2].unlink()
    assert install.remove()
    assert not wrapper.LOG.parent.exists()


def test_a_store_that_cannot_be_read_stays(machine):
    hold(Host().me())
    (wrapper.STORE / "leases.json").write_text("{")
    assert install.remove()
    assert wrapper.STORE.exists()


def test_holders_of_whom_it_cannot_be_told_stay(machine):
    (machine / "bundle").mkdir()
    (machine / "bundle/init.pid").write_text("not a number")
    hold((1, 1), str(machine / "bundle"))
    assert install.remove()
    assert wrapper.STORE.exists()


def test_where_nothing_is_tasks_get_no_gpu_and_where_the_front_is_that_is_damage(machine):
    with pytest.raises(Refused, match="No such file"):
        policy.allowed()
    wrapper.POLICY.write_text(json.dumps(content()))
    assert len(policy.allowed().devices) == 2
    install.remove()
    assert policy.allowed() is None
