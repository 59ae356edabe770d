# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check what machines share with the host, what is their own, and what they leave behind."""

import pathlib
import shutil
import subprocess
import threading

import pytest

from tests.lab import cgroups, processes
from tests.lab.errors import CommandError, MachineError
from tests.lab.park import Park

# Of the machine, on a file system of the host's.
BOUND = "/var/lib/worker"
SERVICE = "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"


@pytest.fixture(scope="module")
def pair(machines_work, tmp_path_factory):
    """Two machines for tests that leave them up and well."""
    park = Park(tmp_path_factory.mktemp("machines") / "lab")
    try:
        yield park.up("one", binds=[BOUND]), park.up("two")
    finally:
        park.destroy()


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


def test_a_machine_runs_its_own_services_and_none_of_the_host(park):
    machine = park.up("one")
    assert machine.enter("/bin/systemctl", "is-system-running").stdout == "running\n"
    machine.write("/etc/systemd/system/mine.service", SERVICE)
    machine.enter("/bin/systemctl", "enable", "--now", "mine.service")
    machine.reboot()
    assert machine.enter("/bin/systemctl", "is-active", "mine.service").stdout == "active\n"
    listed = ["list-unit-files", "--state=enabled", "--type=service", "--no-legend"]
    enabled = machine.enter("/bin/systemctl", *listed).stdout
    assert {line.split()[0] for line in enabled.splitlines()} == {
        "mine.service",
        "systemd-networkd.service",
    }
    assert not pathlib.Path("/etc/systemd/system/mine.service").exists()


def test_machines_reach_each_other_and_the_lab_reaches_them(pair):
    one, two = pair
    assert one.address != two.address
    server = "/usr/bin/python3 -m http.server --directory /etc/systemd --bind 0.0.0.0 80"
    one.run(["/usr/bin/systemd-run", "--unit=server", *server.split()])
    ask = (
        "import sys, time, urllib.request as u\n"
        "for _ in range(100):\n"
        "    try: sys.exit(u.urlopen(sys.argv[1]).status != 200)\n"
        "    except OSError: time.sleep(0.1)\n"
    )
    command = ["/usr/bin/python3", "-c", ask, f"http://{one.address}/"]
    two.run(command)
    subprocess.run(one._network.inside(command), check=True, timeout=30)


def test_a_command_gets_exactly_its_environment_and_gives_its_status(pair):
    machine, _ = pair
    done = machine.run(["/usr/bin/env"], env={"ONLY": "this"})
    assert done.stdout == "ONLY=this\n"
    done = machine.run(["/bin/sh", "-c", "cat; exit 7"], stdin="text", check=False)
    assert (done.stdout, done.returncode) == ("text", 7)
    with pytest.raises(CommandError, match="exit status 3"):
        machine.run(["/bin/sh", "-c", "exit 3"])


def test_a_command_whose_time_is_up_is_killed_with_its_children(pair):
    machine, _ = pair
    with pytest.raises(CommandError, match="not done after 1 s"):
        machine.run(["/bin/sh", "-c", "sleep 4242 & sleep 4242"], timeout=1)
    assert machine.enter("/usr/bin/pgrep", "-f", "sleep 4242", check=False).returncode == 1


def test_limits_of_units_and_overlays_hold_in_a_machine_also_after_a_reboot(pair):
    machine, _ = pair
    command = ["/usr/bin/systemd-run", "--wait", "--pipe", "--quiet", "-p", "TasksMax=3"]
    fork = ["/bin/sh", "-c", "for i in 1 2 3 4 5; do sleep 0.5 & done; wait"]
    assert machine.run([*command, *fork], check=False).returncode != 0
    script = (
        f"cd {BOUND} && mkdir l u w m && "
        "mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w m && touch m/file"
    )
    machine.run(["/bin/sh", "-c", script])
    machine.reboot()
    assert machine.run([*command, *fork], check=False).returncode != 0
    assert machine.enter("/bin/ls", f"{BOUND}/u").stdout == "file\n"


def test_a_killed_machine_keeps_its_files_and_comes_up_again(park):
    machine = park.up("one")
    machine.write("/etc/kept", "yes", mode=0o600)
    machine.enter("/bin/sync")
    machine.kill()
    with pytest.raises(MachineError, match="is down"):
        machine.leader()
    assert park.up("one").read("/etc/kept") == "yes"


def test_destroy_leaves_nothing_whatever_state_the_lab_is_in(park):
    park.up("running")
    park.up("stopped").down()
    killed = park.up("killed")
    for keeper in processes.find(
        str(pathlib.Path(__file__).with_name("keeper.py")), str(killed.directory)
    ):
        processes.kill(keeper)
    shutil.rmtree(park.up("deleted").directory)
    half_made = park.state_dir / "machines/half/upper"
    half_made.mkdir(parents=True)
    assert leftovers(park)
    park.destroy()
    assert leftovers(park) == []
    park.destroy()


def test_control_groups_are_found_while_others_come_and_go(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    ours = tmp_path / "memory/here/lab-1-web-0"
    (ours / "system.slice/lab-1-inner").mkdir(parents=True)
    (ours / "cgroup.procs").write_text("12\n34\n")
    over = threading.Event()

    def churn():
        while not over.is_set():
            for place in (tmp_path / "memory", ours):
                (place / "other/one/two").mkdir(parents=True)
                shutil.rmtree(place / "other")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert cgroups.find("lab-1") == [ours]
            assert cgroups.processes([ours]) == {12, 34}
    finally:
        over.set()
        thread.join()
