# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine of the lab, and the emulated Juju on it: hooks' environment, hooks that end half-way.

A charm of a few lines of shell, on one machine for the whole file, which tells one story. What
needs no machine is in test_juju_events.py.
"""

import io
import json
import pathlib
import subprocess
import sys
import tarfile
import time

import pytest

from tests.lab import cgroups, outfit, processes, shellcharm
from tests.lab.errors import CommandError, MachineError
from tests.lab.juju.agent import Interruption
from tests.lab.juju.controller import Controller
from tests.lab.juju.model import Model
from tests.lab.session import ROOT
from tests.lab.shellcharm import behave, forget_hooks, hooks_of, machine, run_script

# Of the machine, on a file system of the host's.
BOUND = "/var/lib/worker"
SERVICE = "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture(scope="module")
def model(machines_work, tmp_path_factory):
    """The applications one and two on one machine with two cards; their first hooks have run."""
    folder = tmp_path_factory.mktemp("one")
    shared = folder / "lab/shared"
    outfit.prepare(shared)
    blob = folder / "some.bin"
    blob.write_text("content")
    charm = shellcharm.pack(folder / "one.charm", {"install": "echo kept >.unit-state.db\n"})
    controller = Controller(
        folder / "lab",
        retry_seconds=0.01,
        outfitter=lambda machine, wanted: outfit.fit(machine, wanted, shared),
    )
    model = Model(controller)
    try:
        model.deploy(charm, "one", None, {"blob": blob}, binds=[BOUND], outfit={"gpus": 2})
        model.deploy(charm, "two", to=["0"])
        model.controller.settle()
        yield model
    finally:
        model.controller.destroy()


def test_units_of_one_machine_take_turns_and_each_has_jujus_environment(model):
    units = [model.unit(unit) for unit in ("one/0", "two/0")]
    assert {(unit["machine"], unit["machine_id"]) for unit in units} == {("one-0", "0")}
    script = """
        echo begin >>/srv/turns; sleep 0.2
        env >/srv/env; cat "$(resource-get blob)" >/srv/blob; network-get peers --format=json
        echo end >>/srv/turns
    """
    behave(model, "one/0", "update-status", script)
    model.update_status()
    model.controller.settle()
    on = machine(model, "one/0")
    assert on.read("/srv/turns") == "begin\nend\n" * 2
    env = dict(line.split("=", 1) for line in on.read("/srv/env").splitlines())
    told = ("JUJU_HOOK_NAME", "JUJU_DISPATCH_PATH", "JUJU_UNIT_NAME", "JUJU_CHARM_HTTP_PROXY")
    assert [env[name] for name in told] == [
        "update-status",
        "hooks/update-status",
        "two/0",
        "",
    ]
    assert env["PATH"].startswith("/var/lib/juju/tools/")
    assert not {"SUDO_USER", "INVOCATION_ID"} & env.keys()
    # Two was given no file: Juju has an empty one.
    assert on.read("/srv/blob") == ""
    assert run_script(model, "one/0", 'cat "$(resource-get blob)"') == "content"


def test_a_hook_killed_half_way_runs_again_from_the_start(model):
    script = (
        "echo begun >>/srv/steps\nopen-port 80\nconfig-get size\n"
        "[ $(wc -l </srv/steps) = 2 ] || sleep 60\necho done >>/srv/steps\n"
    )
    behave(model, "one/0", "update-status", script)
    on = machine(model, "one/0")
    for moment in (Interruption(at_command=2), Interruption(after_seconds=2)):
        model.store.do("DELETE FROM port")
        on.write("/srv/steps", "")
        model.controller.fire("one/0", "update-status", moment)
        assert on.read("/srv/steps") == "begun\nbegun\ndone\n"
        assert model.store.column("SELECT port FROM port") == ["80/tcp"]


SETTLE = """
import pathlib, signal, sys
# A shell starts its background jobs with SIGINT ignored, and so all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.lab.juju.controller import Controller
controller = Controller(pathlib.Path(sys.argv[1]), retry_seconds=0.01)
controller.fire("one/0", "update-status")
"""


@pytest.mark.parametrize("ending", ["SIGINT", "SIGKILL"])
def test_a_lab_command_that_is_interrupted_leaves_a_hook_to_be_run_again(model, ending):
    on = machine(model, "one/0")
    model.store.do("DELETE FROM port")
    on.enter("/bin/rm", "-f", "/srv/go", "/srv/steps")
    script = "open-port 80\necho begun >>/srv/steps\n[ -e /srv/go ] || sleep 1234\n"
    behave(model, "one/0", "update-status", script)
    command = [sys.executable, "-c", SETTLE, str(model.controller.state_dir)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as lab:
        try:
            deadline = time.monotonic() + 60
            while on.enter("/bin/cat", "/srv/steps", check=False).returncode:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            subprocess.run(["/bin/kill", f"-{ending}", str(lab.pid)], check=True)
            lab.wait(60)
        finally:
            lab.kill()
    assert model.store.rows("SELECT * FROM port") == []
    on.write("/srv/go", "")
    model.controller.settle()
    assert on.enter("/usr/bin/pgrep", "-f", "sleep 1234", check=False).returncode == 1
    assert on.read("/srv/steps") == "begun\nbegun\n"
    assert model.store.column("SELECT port FROM port") == ["80/tcp"]
    assert model.unit("one/0")["agent"] == "idle"


# What a machine's own service does that wakes its unit.
WAKER = """\
cd /srv
juju-exec -u one/0 'echo $JUJU_CONTEXT_ID.$JUJU_HOOK_NAME.$PWD; open-port 90; exit 7' >said 2>&1
echo $? >status
juju-exec -u one/0 'JUJU_DISPATCH_PATH=hooks/woken ./dispatch'
juju-exec -u one/9 true 2>no-unit
"""


def test_a_machine_runs_commands_as_its_unit_in_turn_with_hooks(model):
    on = machine(model, "one/0")
    on.write("/srv/waker", WAKER)
    forget_hooks(model, "one/0")
    hook = """
        juju-exec -u one/0 true 2>/srv/refused
        [ ! -e /srv/status ] || echo it was not waited for >>/var/log/hooks
    """
    behave(model, "one/0", "update-status", hook)
    # No agent runs: it waits for those of the next command.
    on.enter("/usr/bin/systemd-run", "--quiet", "--collect", "/bin/sh", "/srv/waker")
    time.sleep(0.5)
    assert on.read("/srv/said") == ""
    model.update_status("one/0")
    ended = ("/bin/sh", "-c", "[ -s /srv/no-unit ]")
    model.controller.settle(lambda: not on.enter(*ended, check=False).returncode)
    assert hooks_of(model, "one/0") == ["update-status", "woken"]
    context, hook_name, folder = on.read("/srv/said").strip().split(".")
    assert context.startswith("one/0-run-commands-")
    assert (hook_name, folder) == ("", model.controller.agent("one/0").charm_dir)
    assert on.read("/srv/status") == "7\n"
    assert "90/tcp" in model.store.column("SELECT port FROM port")
    assert "cannot be called from within a hook" in on.read("/srv/refused")
    assert 'unit "one/9" not found' in on.read("/srv/no-unit")
    behave(model, "one/0", "update-status", "true\n")


def test_an_action_fails_by_its_words_or_its_exit_status_and_has_nested_results(model):
    greet = 'action-log "on the way"; action-set greeting.text="hello $(action-get)" a=b\n'
    behave(model, "one/0", "greet", greet)
    behave(model, "one/0", "break", "action-set seen=yes; exit 3\n")
    found = []
    for name in ("greet", "break"):
        number = model.run_action("one/0", name, {})
        model.controller.settle()
        row = model.store.row("SELECT * FROM action WHERE id = ?", number)
        found.append((row["status"], json.loads(row["results"]), row["message"]))
    assert found == [
        ("completed", {"greeting": {"text": "hello name: you"}, "a": "b"}, ""),
        ("failed", {"seen": "yes", "return-code": 3}, "exit status 3"),
    ]
    assert model.unit("one/0")["agent"] == "idle"


BRIDGE = (
    "ip link add xyz0 type bridge && ip address add 10.80.0.1/16 dev xyz0 && "
    "ip link set xyz0 up && ip address add 169.254.7.7/16 dev xyz0"
)


def test_a_new_interface_fires_config_changed_and_is_offered_first(model):
    on, own = machine(model, "one/0"), model.unit("one/0")["address"]
    forget_hooks(model, "one/0")
    on.enter("/bin/sh", "-c", BRIDGE)
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["config-changed"] * 2  # each unit of the machine
    told = json.loads(run_script(model, "one/0", "network-get peers --format=json"))
    assert told["ingress-addresses"] == ["10.80.0.1", own]
    assert [device["interface-name"] for device in told["bind-addresses"]] == ["xyz0", "host0"]
    assert told["bind-addresses"][0]["addresses"][0]["cidr"] == "10.80.0.0/16"


def test_a_command_gets_exactly_its_environment_and_gives_its_status(model):
    on = machine(model, "one/0")
    script = ["/bin/sh", "-c", "/usr/bin/env; cat; exit 7"]
    done = on.run(script, {"ONLY": "this"}, "text", check=False)
    assert {"ONLY=this", "text"} <= set(done.stdout.splitlines())
    assert ("HOME=" in done.stdout, done.returncode) == (False, 7)
    with pytest.raises(CommandError, match="not done after 1 s"):
        on.run(["/bin/sh", "-c", "sleep 4242 & sleep 4242"], timeout=1)
    assert on.enter("/usr/bin/pgrep", "-f", "sleep 4242", check=False).returncode == 1


CHARM = 'import json, sys; sys.path[:0] = ["/srv/src", "/srv/lib"]\n'
LOG = f"""{CHARM}
from gpu_agent.gpu.vendors.nvidia import xid
log = xid.read()
print(json.dumps([log.problem, log.complete, [[m.code, m.pci_address] for m in log.messages]]))
"""
CARDS = f"""{CHARM}
from gpu_agent.gpu.vendors import detect, report
print(report.as_json(detect.detect(), (), {{}}))
"""


def charm(on, program):
    """What the charm's own code finds in the machine."""
    return json.loads(on.run(["/usr/bin/python3", "-c", program]).stdout)


def detected(on):
    found = charm(on, CARDS)
    return found["vendor"], found["state"], [gpu["nodes"][0] for gpu in found["gpus"]]


def test_cards_can_be_lost_leave_the_kernels_log_and_be_another_makers(model):
    on, code = machine(model, "one/0"), io.BytesIO()
    with tarfile.open(fileobj=code, mode="w") as archive:
        for name in ("src", "lib"):
            archive.add(ROOT / name, name)
    on.enter("/bin/tar", "-xf", "-", "-C", "/srv", stdin=code.getvalue())
    assert charm(on, LOG) == ["", True, []]
    outfit.fakegpu(on, "xid", "1", "79")
    outfit.fakegpu(on, "lose", "1")
    on.enter("/bin/systemctl", "restart", "systemd-journald")
    assert charm(on, LOG) == ["", True, [[79, "0000:02:00.0"]]]
    assert on.enter("/bin/sh", "-c", "ls /dev/nvidia?").stdout == "/dev/nvidia0\n"
    outfit.fakegpu(on, "install", "--vendor", "amd", "--count", "2")
    assert detected(on) == ("amd", "ready", ["/dev/kfd"] * 2)


FORKS = ("/bin/sh", "-c", "for i in 1 2 3 4 5; do sleep 0.5 & done; wait")
LIMITED = ["/usr/bin/systemd-run", "--wait", "--pipe", "--quiet", "-p", "TasksMax=3", *FORKS]
OVERLAY = (
    f"cd {BOUND} && mkdir l u w m && "
    "mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w m && touch m/file"
)


def test_a_killed_machine_comes_up_with_all_its_own_and_its_units_start(model):
    on = machine(model, "one/0")
    assert on.run(LIMITED, check=False).returncode != 0
    on.run(["/bin/sh", "-c", OVERLAY])
    on.write("/etc/systemd/system/mine.service", SERVICE)
    on.enter("/bin/systemctl", "enable", "mine.service")
    forget_hooks(model, "one/0")
    on.enter("/bin/sync")
    on.kill()
    with pytest.raises(MachineError, match="is down"):
        on.leader()
    model.controller.wake()
    model.controller.settle()
    # The bridge is gone, which each unit hears of too.
    heard = [hook for hook in hooks_of(model, "one/0") if hook != "config-changed"]
    assert heard == ["start", "start"]
    assert on.enter("/bin/systemctl", "is-system-running").stdout == "running\n"
    assert on.enter("/bin/systemctl", "is-active", "mine.service").stdout == "active\n"
    listed = ["list-unit-files", "--state=enabled", "--type=service", "--no-legend"]
    enabled = {x.split()[0] for x in on.enter("/bin/systemctl", *listed).stdout.splitlines()}
    # None of the host's.
    assert enabled == {"mine.service", "systemd-networkd.service", "fake-gpu.service"}
    assert not pathlib.Path("/etc/systemd/system/mine.service").exists()
    assert on.enter("/bin/ls", f"{BOUND}/u").stdout == "file\n"
    assert on.run(LIMITED, check=False).returncode != 0
    assert charm(on, LOG) == ["", True, []]
    assert detected(on) == ("amd", "ready", ["/dev/kfd"] * 2)


def test_refresh_keeps_the_charms_state_and_a_unit_that_goes_leaves_the_machine(model, tmp_path):
    new = shellcharm.pack(tmp_path / "new.charm", {"upgrade-charm": "cat .unit-state.db\n"})
    forget_hooks(model, "one/0")
    model.refresh("one", new)
    model.controller.settle()
    assert hooks_of(model, "one/0") == ["upgrade-charm", "config-changed"]
    assert "upgrade-charm kept" in shellcharm.log_of(model, "one/0")
    model.remove_unit("two/0")
    model.controller.settle()
    agents = machine(model, "one/0").enter("/bin/ls", "/var/lib/juju/agents").stdout
    assert agents == "unit-one-0\n"


def leftovers(park) -> list[str]:
    tag = park.network.name
    found = [str(p) for p in cgroups.find(tag)]
    found += [
        line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if tag in line
    ]
    found += [
        f"process {p.name}"
        for p in pathlib.Path("/proc").iterdir()
        if p.name.isdigit()
        and str(park.state_dir) in " ".join(processes.command_line(int(p.name)))
    ]
    return found + [str(p) for p in park.state_dir.glob("*")]


def test_destroy_leaves_nothing_whatever_state_the_lab_is_in(model):
    park, on = model.controller.park, machine(model, "one/0")
    keeper = str(pathlib.Path(__file__).with_name("keeper.py"))
    for pid in processes.find(keeper, str(on.directory)):
        processes.kill(pid)
    (park.state_dir / "machines/half/upper").mkdir(parents=True)
    assert leftovers(park)
    model.controller.destroy()
    assert leftovers(park) == []
    model.controller.destroy()
