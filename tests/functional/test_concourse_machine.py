# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Web and worker as real services in a machine: started, changed, killed half-way, removed."""

import contextlib
import json
import os
import re
import time

import pytest

from ci.concourse import rsa_keys as keys
from relations.worker_view import digest
from tests import once
from tests.functional.ci_driver import is_look
from tests.functional.ci_host import HOST_KEY, ODD, TAGS, Host
from tests.functional.concourse_machine import NEEDS, concourse_machine

pytestmark = NEEDS

# Each place to be killed at in `make soak`, each fifth in the short form.
STRIDE = 1 if "GPUCI_SOAK" in os.environ else 5


@pytest.fixture(scope="module")
def host():
    with concourse_machine("ci") as machine, contextlib.closing(Host(machine)) as host:
        yield host


@pytest.fixture(scope="module")
def installed(host):
    """The machine with Concourse unpacked and a database that takes a password."""
    host.release()
    host.sh(
        "sysctl -qw net.ipv4.ip_forward=1; cd /srv; mkdir rootfs; "
        "tar xzf /opt/concourse/current/fly-assets/fly-linux-amd64.tgz; "
        "tar xzf /opt/concourse/current/resource-types/mock/rootfs.tgz -C rootfs; "
        "chown -R 4294967294:4294967294 rootfs"
    )
    first = host.call("ci.concourse.web.local_postgresql.HERE.ensure")
    assert first["result"] is True
    quoted = ODD.replace("'", "''")
    # Not in argv: systemd-run puts in what it knows for ${HOME}.
    psql = ["/usr/sbin/runuser", "-u", "postgres", "--", "/usr/bin/psql", "-q"]
    host.machine.run(psql, stdin=f"ALTER ROLE concourse PASSWORD '{quoted}'")
    return host


@pytest.fixture
def running(installed):
    # A busy machine's may not answer within a second.
    until(
        lambda: installed.both() == [True, True],
        lambda: installed.sh("journalctl -o cat -u concourse-web | tail -n 20"),
    )
    return installed


def changing(commands):
    """Those of the commands that may change something."""
    return [command for command in commands if not is_look(command)]


def test_local_postgresql_lets_in_only_its_own_user_and_is_left_alone(installed):
    installed.sh("id concourse || useradd --system concourse --comment gpu-ci-worker")
    query = "psql -h /var/run/postgresql -d concourse -tAc 'SELECT current_user'"
    assert installed.sh(f"cd /; runuser -u concourse -- {query}").strip() == "concourse"
    assert installed.sh(f"cd /; runuser -u nobody -- {query} || echo no").strip() == "no"
    again = installed.call("ci.concourse.web.local_postgresql.HERE.ensure")
    assert again["result"] is False
    assert changing(again["commands"]) == []


def test_settings_arrive_exactly_as_they_were_given(running):
    assert running.environment("concourse-web")["CONCOURSE_POSTGRES_PASSWORD"] == ODD
    worker = running.environment("concourse-worker")
    assert worker["CONCOURSE_NAME"] == "worker-0"
    assert worker["CONCOURSE_HEALTHCHECK_BIND_IP"] == "127.0.0.1"
    until(lambda: running.known("worker-0"))
    assert tuple(running.known("worker-0")["tags"]) == TAGS


def test_no_secret_is_in_argv_or_readable_by_others(running):
    shown = running.sh("cat /etc/systemd/system/concourse-*.service; ps -eo args")
    modes = running.sh(
        "stat -c '%a %U %n' /etc/concourse/*.env /etc/concourse/keys /etc/concourse/keys/*"
    )
    for secret in (ODD, "admin-password", "PRIVATE KEY"):
        assert secret not in shown
    wanted = {"keys": "700 concourse", "worker.env": "600 root", "web.env": "600 root"}
    for mode, name in (line.rsplit(" ", 1) for line in modes.splitlines()):
        ours = "600 root" if "worker" in name or name.endswith(".pub") else "600 concourse"
        if name.endswith("authorized_worker_keys"):
            ours = "600 concourse"
        assert mode == wanted.get(name.rpartition("/")[2], ours), name


def test_units_pass_verify_without_a_word(running):
    for unit in ("concourse-web", "concourse-worker"):
        told = running.machine.run(
            ["/usr/bin/systemd-analyze", "verify", f"/etc/systemd/system/{unit}.service"]
        )
        assert (told.stdout, told.stderr) == ("", "")


def test_second_run_changes_nothing_and_is_quick(running):
    before = (
        running.state(),
        running.main_pid("concourse-web"),
        running.main_pid("concourse-worker"),
    )
    for done in (running.release(), running.web(), running.worker()):
        assert changing(done["commands"]) == []
        assert done["said"] == []
        assert done["result"] is False or done["result"].startswith("Release")
        assert done["seconds"] < 10  # A download, a start or a wait would take longer.
    after = (
        running.state(),
        running.main_pid("concourse-web"),
        running.main_pid("concourse-worker"),
    )
    assert after == before


def test_key_reload_is_made_up_for_if_the_hook_was_killed_before_it(running):
    before = running.main_pid("concourse-web")
    keys_file = "sha256sum /etc/concourse/keys/authorized_worker_keys"
    public, old, step = keys.public_key_line(keys.generate_private_key()), running.sh(keys_file), 0
    while running.sh(keys_file) == old:
        assert running.web(public, die_at=step) is None
        step += 1
    assert "signal concourse-web.service SIGHUP" in running.web(public)["commands"]
    assert running.main_pid("concourse-web") == before
    assert running.web(public)["result"] is False


@pytest.mark.parametrize("part", ["web", "worker"])
def test_hook_killed_at_any_point_and_run_again_ends_in_the_same_state(running, part):
    variants = {
        "web": [running.web_plan(external_url=f"http://{name}") for name in ("one", "two")],
        "worker": [running.worker_plan(tags=[name]) for name in ("one", "two")],
    }[part]
    told = running.call(
        f"tests.functional.ci_driver.apply_{part}", variants=variants, stride=STRIDE
    )
    assert told["differ"] == []
    assert told["deaths"] * STRIDE >= 8, told


def test_worker_is_connected_as_long_as_web_lets_it_in(running):
    def connected():
        done = running.call("ci.concourse.worker.worker.is_connected", say=False)
        return done["result"], done["seconds"]

    until(lambda: connected()[0])
    assert connected() < (True, 2), "it is known by now"
    running.sh("systemctl stop concourse-web")
    assert running.healthy() == [False, True]
    assert not connected()[0]
    running.web()
    assert connected()[0]
    assert running.known("worker-0")
    running.worker(private_key=keys.generate_private_key())
    assert running.healthy() == [True, True]
    assert not connected()[0]


def start_task(host, name):
    """Run a task that has begun when this returns, and ends once it finds its file go-NAME."""
    script = f"touch /begun-{name}; until [ -e /go-{name} ]; do echo tick; sleep 0.2; done"
    task = {
        "platform": "linux",
        "rootfs_uri": "raw:///srv/rootfs",
        "run": {"path": "sh", "args": ["-c", script]},
    }
    host.machine.write("/srv/task.yml", json.dumps(task))
    # Its tags may still be those of before its last restart.
    until(lambda: "gpu" in (host.known("worker-0") or {}).get("tags", ()))
    host.fly("workers")
    host.sh(
        f"systemd-run -q --unit={name} --setenv=HOME=/root "
        f"-p StandardOutput=file:/srv/{name}.log "
        "/srv/fly -t lab execute -c /srv/task.yml --tag gpu"
    )
    in_task = "for init in $(pgrep -x gdn-init); do ls /proc/$init/root; done"
    until(
        lambda: f"begun-{name}" in host.sh(in_task, check=False),
        lambda: host.sh(f"tail -n 20 /srv/{name}.log; journalctl -o cat -n 20 -u 'concourse-*'"),
    )


LEFT = """
ps -eo pid,args | grep -E '[/]opt/concourse|[g]dn-init|[c]ontainerd' || :
grep -E 'concourse|containerd' /proc/mounts | grep -v '/var/lib/concourse ' || :
find /sys/fs/cgroup -name 'garden*' -o -name '*concourse*' || :
iptables-save | grep -E 'concourse|CONCOURSE|CNI' || :
ip -o link | grep -E 'concourse|veth' || :
ls -d /run/containerd /run/gpu-ci /opt/containerd /opt/concourse /etc/concourse /var/lib/cni \
    /etc/systemd/system/concourse* /etc/systemd/system/*/concourse* /var/lib/concourse/* || :
getent passwd concourse || :
getent group concourse || :
"""


def test_retired_worker_leaves_the_cluster_even_with_a_task_and_does_not_come_back(running):
    start_task(running, "retired")
    done = running.call("ci.concourse.worker.worker.retire", 3)
    assert 3 <= done["seconds"] < 120
    assert done["said"] == ["Retiring the worker: its builds have 3 s left"]
    assert running.known("worker-0") is None
    assert "worker-0" not in running.fly("workers")
    assert running.sh("systemctl is-enabled concourse-worker", check=False).strip() == "disabled"
    assert running.main_pid("concourse-worker") == 0
    assert running.call("ci.concourse.worker.worker.retire", 3)["result"] is False
    running.call("ci.concourse.worker.worker.take_up")
    assert running.sh("systemctl is-enabled concourse-worker").strip() == "enabled"
    until(lambda: running.known("worker-0"))


def test_a_task_goes_on_under_new_tags_and_both_new_keys(running):
    tags, log = ["gpu", "new"], "/srv/task.log"
    start_task(running, "task")

    def goes_on():
        """Web takes some seconds to listen to the task again.

        How a task ended that ends before that, Concourse can't tell (8.3.0
        worker/runtime/container.go, Attach).
        """
        ticks = running.machine.read(log).count("tick")
        until(
            lambda: running.machine.read(log).count("tick") > ticks,
            lambda: running.machine.read(log),
        )

    assert running.worker(tags=tags)["result"] is True
    until(
        lambda: (running.known("worker-0") or {}).get("tags") == tags,
        lambda: running.fly("workers"),
    )
    goes_on()
    web = running.main_pid("concourse-web")
    plan = running.worker_plan(tags=tags)
    told = running.call("tests.functional.ci_driver.new_worker_key", plan, say=False)
    assert told["result"] == [True, True, True]
    assert running.main_pid("concourse-web") == web, "it reads its workers' keys without a restart"
    new = once.rsa_key(3)
    both = [HOST_KEY, keys.public_key_line(new)]
    running.worker(tsa_public_keys=both, tags=tags)
    shows = running.web_plan()
    shows["secrets"]["tsa_host_key"] = new
    assert running.call("tests.functional.ci_driver.apply_web", shows)["result"] is True
    running.worker(tsa_public_keys=both[1:], tags=tags)
    until(lambda: running.call("ci.concourse.worker.worker.is_connected", say=False)["result"])

    def seen():
        name = "tests.functional.ci_driver.seen"
        return running.call(name, "worker-0", tags, say=False)["result"]

    until(lambda: seen() == [{"state": "running", "tags": digest(tags)}], seen)
    goes_on()
    running.sh("for init in $(pgrep -x gdn-init); do touch /proc/$init/root/go-task; done")
    until(lambda: "succeeded" in running.machine.read(log), lambda: running.machine.read(log))

    def pruned():
        name = "tests.functional.ci_driver.pruned"
        return running.call(name, ["worker-0"], say=False)["result"]

    assert pruned() == ["worker-0"], "web forgets none that runs"
    running.sh("systemctl stop concourse-worker")
    until(lambda: seen() == [{"state": "stalled", "tags": digest(tags)}], seen, seconds=150)
    assert pruned() == []
    assert seen() == [{"state": "absent", "tags": ""}]


def test_a_worker_that_web_takes_no_more_waits_for_no_builds(running):
    """As on a removed application: web hears of it at the same time, and revokes the key."""
    until(lambda: running.known("worker-0"))
    running.call("tests.functional.ci_driver.apply_web", {**running.web_plan(), "worker_keys": []})
    running.sh("systemctl restart concourse-web")
    done = running.call(
        "ci.concourse.worker.worker.retire", 240, constants={"FAREWELL_SECONDS": 2}
    )
    assert done["seconds"] < 120
    assert done["said"][0] == "Retiring the worker: its builds have 240 s left"
    last = r"Retiring the worker: web takes nothing of it any more, its builds have [12] s left"
    assert re.fullmatch(last, done["said"][-1])
    assert running.main_pid("concourse-worker") == 0


def test_removal_leaves_nothing_of_a_worker_with_running_tasks(running):
    start_task(running, "removed")
    assert running.call("ci.concourse.worker.worker.remove", say=False)["result"] is True
    # Web, on the same machine, goes on.
    assert running.healthy() == [True, False]
    assert running.call("ci.concourse.web.web.remove", say=False)["result"] is True
    assert running.call("ci.concourse.release.remove", say=False)["result"] is True
    # By stdin: in argv it would find itself.
    assert running.machine.run(["/bin/sh"], stdin=LEFT).stdout == ""
    for name in ("worker.worker", "web.web", "release"):
        done = running.call(f"ci.concourse.{name}.remove", say=False)
        assert done["result"] is False
        assert changing(done["commands"]) == []


def until(condition, why=lambda: "it did not come about", seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.3)
