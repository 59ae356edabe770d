# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a task can do with the folders of the host that it was given, by the real runc.

Its user namespace is Concourse's: root is 4294967294 outside, the others keep their numbers.
"""

import json
import os
import pathlib
import shutil
import subprocess
import uuid

import pytest

from gpu_runtime import task_mounts as folders
from gpu_runtime.task_mounts import Folder

RUNC = shutil.which("runc", path="/usr/local/sbin:/usr/sbin:/usr/bin:/opt/concourse/current/bin")
BUSYBOX = shutil.which("busybox")
MAPPINGS = [
    {"containerID": 0, "hostID": 4294967294, "size": 1},
    {"containerID": 1, "hostID": 1, "size": 4294967293},
]
# Concourse's for a task that is not privileged.
CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="containers and mounts need root"),
    pytest.mark.skipif(not RUNC or not BUSYBOX, reason="no runc or no busybox on this machine"),
]


class Task:
    """A container of Concourse's shape, made anew for each line that it runs."""

    def __init__(self, place):
        self.place = place
        self.root = place / "rootfs"
        for name in ("bin", "proc", "dev", "sys"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, self.root / "bin" / "busybox")
        subprocess.run(["chown", "-R", "4294967294:4294967294", str(self.root)], check=True)

    def config(self, line, user=0):
        path = self.place / "config.json"
        path.unlink(missing_ok=True)
        subprocess.run([RUNC, "spec", "--bundle", str(self.place)], check=True)
        config = json.loads(path.read_text())
        config["root"] = {"path": str(self.root), "readonly": False}
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES)
        config["process"] |= {
            "terminal": False,
            "args": ["/bin/busybox", "sh", "-c", line],
            "user": {"uid": user, "gid": user},
            "capabilities": {} if user else capabilities,
        }
        config["mounts"] = [mount for mount in config["mounts"] if "cgroup" not in mount["type"]]
        config["linux"] |= {"uidMappings": MAPPINGS, "gidMappings": MAPPINGS}
        config["linux"]["namespaces"] += [{"type": "user"}]
        return config

    def run(self, line, *given, user=0):
        """What the line says, its errors too."""
        config = folders.bound(self.config(line, user), list(given))
        (self.place / "config.json").write_text(json.dumps(config))
        name = f"folders-{uuid.uuid4()}"
        argv = [RUNC, f"--root={self.place}/state", "run", f"--bundle={self.place}", name]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
        )
        return done.stdout + done.stderr


@pytest.fixture
def place():
    """Folders whose way is root's alone, unlike a test's own."""
    path = pathlib.Path("/run", f"task-folders-{uuid.uuid4()}")
    path.mkdir(mode=0o711)
    # Others of a test may look at /run: what is mounted here is gone with this, whatever happens.
    subprocess.run(["mount", "-t", "tmpfs", "none", str(path)], check=True)
    path.chmod(0o711)
    yield path
    subprocess.run(["umount", "--recursive", "--lazy", str(path)], check=True)
    path.rmdir()


@pytest.fixture
def task(place):
    (place / "bundle").mkdir(mode=0o711)
    return Task(place / "bundle")


@pytest.fixture
def closed(place):
    """A folder to which nobody but root has the way."""
    path = place / "closed"
    path.mkdir(mode=0o700)
    return path


def folder(closed, name, mode=0o755, owner=0):
    path = closed / name
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def test_a_folder_is_read_and_not_written_to(task, closed):
    data = folder(closed, "data", 0o777)
    (data / "set").write_text("42\n")
    given = Folder(str(data), "/srv/data", writable=False)
    said = task.run("cat /srv/data/set; touch /srv/data/x", given)
    assert said == "42\ntouch: /srv/data/x: Read-only file system\n"
    assert [path.name for path in data.iterdir()] == ["set"]


@pytest.mark.parametrize(
    ("mode", "owner", "user", "works"),
    [
        (0o755, 0, 0, False),  # the worker's root is nobody there
        (0o1777, 0, 0, True),
        (0o1777, 0, 1000, True),
        (0o755, 1000, 0, True),
        (0o755, 1000, 1000, True),
        (0o755, 1000, 1001, False),
    ],
)
def test_who_writes_to_a_folder_that_tasks_may_write_to(task, closed, mode, owner, user, works):
    cache = folder(closed, "cache", mode, owner)
    said = task.run(
        "touch /cache/x && echo done", Folder(str(cache), "/cache", writable=True), user=user
    )
    assert said == ("done\n" if works else "touch: /cache/x: Permission denied\n")
    found = [path.stat().st_uid for path in cache.iterdir()]
    assert found == ([user or 4294967294] if works else [])


def test_one_task_goes_on_with_what_another_has_left(task, closed):
    cache = Folder(str(folder(closed, "cache", 0o1777)), "/root/.cache/uv", writable=True)
    place = "cd /root/.cache/uv; "
    assert task.run(f"{place} mkdir a; echo 1 >a/b", cache) == ""
    assert task.run(f"{place} echo 2 >>a/b; cat a/b; mv a c", cache) == "1\n2\n"


def test_nothing_there_has_setuid_or_is_a_device(task, closed):
    cache = folder(closed, "cache", 0o1777)
    shutil.copy(BUSYBOX, cache / "busybox")
    (cache / "busybox").chmod(0o4755)
    os.mknod(cache / "null", 0o20666, os.makedev(1, 3))
    given = Folder(str(cache), "/cache", writable=True)
    # busybox itself drops what it is not to have; the kernel's word is in /proc.
    said = task.run(
        "/cache/busybox grep Uid: /proc/self/status; cat /cache/null", given, user=1000
    )
    assert said.split() == [
        *("Uid:", "1000", "1000", "1000", "1000"),
        *("cat:", "can't", "open", "'/cache/null':", "Permission", "denied"),
    ]


def test_what_is_mounted_below_comes_along_as_closed_as_the_folder(task, closed):
    data = folder(closed, "data")
    inner = data / "nfs"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "none", str(inner)], check=True)
    (inner / "set").write_text("42\n")
    given = Folder(str(data), "/srv/data", writable=False)
    line = "cd /srv/data/nfs; cat set; touch x 2>/dev/null || echo no; grep ' /srv' /proc/mounts"
    content, touched, *mounts = task.run(line, given).splitlines()
    assert (content, touched, len(mounts)) == ("42", "no", 2)
    assert all(mount.split()[3].startswith("ro,nosuid,nodev") for mount in mounts)


def test_a_job_cannot_have_the_next_one_mount_something_else(task, closed):
    """It has a folder, and the operator named one below that: nothing there is trusted."""
    cache = folder(closed, "cache", 0o1777)
    outer = Folder(str(cache), "/cache", writable=True)
    assert task.run("mkdir /cache/uv && ln -s /etc /cache/hf", outer) == ""
    for name in ("uv", "hf"):
        with pytest.raises(folders.Refused, match="cache must be root-owned"):
            task.run("ls /inner", Folder(f"{cache}/{name}", "/inner", writable=False))


def test_an_image_that_has_a_link_there_covers_nothing_outside_itself(task, closed):
    data = folder(closed, "data")
    (data / "set").write_text("42\n")
    (task.root / "srv").mkdir()
    (task.root / "srv" / "data").symlink_to("/../../../../../../elsewhere")
    given = Folder(str(data), "/srv/data", writable=False)
    assert task.run("cat /elsewhere/set", given) == "42\n"
    assert not pathlib.Path("/elsewhere").exists()
