# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The stand-in for Concourse with real PostgreSQL, SSH, containerd, runc and containers.

One web and one worker serve the whole file: the tests are one story, told in order.
"""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import once
from tests.fakes.concourse.build import build
from tests.fakes.concourse.harness import (
    CLEAN_ENV,
    PATIENCE,
    Concourse,
    children,
    missing,
    postgresql,
    private_namespaces,
    remove_containers,
    until,
)

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def concourse(stack):
    """A running web and worker, the worker's key authorized and its tags none."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
    folder.chmod(0o755)
    for packed, where in (
        (once.made("concourse.tgz", build), folder),
        (folder / "concourse/fly-assets/fly-linux-amd64.tgz", folder),
    ):
        subprocess.run(["tar", "-xzf", packed, "-C", where], check=True, env=CLEAN_ENV)
    namespaces = stack.enter_context(private_namespaces())
    database = stack.enter_context(postgresql(folder))
    concourse = Concourse(folder, namespaces, database)
    stack.callback(remove_containers, namespaces, concourse)
    stack.callback(concourse.close)
    concourse.start_web()
    concourse.login()
    return concourse


def test_a_worker_comes_in_once_its_key_is_known_and_web_is_who_it_should_be(concourse):
    concourse.start_worker(CONCOURSE_TSA_PUBLIC_KEY=f"{concourse.folder}/worker_key.pub")
    until("mismatch", lambda: "remote host public key mismatch" in concourse.log("worker"))
    # The worker itself: nsenter, its parent, hands no signal on.
    os.kill(children(concourse.worker.pid)[0], signal.SIGTERM)
    assert concourse.worker.wait(PATIENCE) == 0

    concourse.start_worker()
    until("refusal", lambda: "tsa.unknown-worker-key" in concourse.log("web"))
    assert concourse.workers() == []
    assert until("health", lambda: concourse.health() == 200)
    concourse.authorize()
    concourse.worker_is("running")


def test_the_container_has_the_shape_of_concourse(concourse):
    # containerd's shim loses stderr of a process that ends before it has begun to copy (1.6.20
    # pkg/process/io.go, copyPipes: the end of stdout closes the file of both).
    script = "env | sort; id -u; cat /etc/resolv.conf; echo to stderr >&2; sleep 1; exit 7"
    run = {"path": "sh", "args": ["-c", script], "user": "ci"}
    done = concourse.task("", params={"MY_PARAM": "v", "NUMBER": 3}, run=run)
    assert done.returncode == 7, done.stdout
    create, execute = concourse.newest("create"), concourse.newest("exec")
    handle = create["hostname"]
    assert create["linux"]["cgroupsPath"] == f"garden/{handle}"
    assert create["linux"]["uidMappings"][0] == {
        "containerID": 0,
        "hostID": 4294967294,
        "size": 1,
    }
    assert {x["type"] for x in create["linux"]["namespaces"]} >= {"user", "cgroup", "network"}
    assert create["process"]["args"] == ["/tmp/gdn-init"]
    mounts = [mount["destination"] for mount in create["mounts"]]
    assert mounts[:7] == [
        *("/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys", "/sys/fs/cgroup")
    ]
    assert mounts[7:9] == ["/tmp/gdn-init", "/scratch"]
    assert mounts[10:] == ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"]
    url = concourse.web_env["CONCOURSE_EXTERNAL_URL"]
    expected = [f"ATC_EXTERNAL_URL={url}", "MY_PARAM=v", "NUMBER=3", "USER=ci"]
    assert execute["env"][:4] == expected
    assert execute["env"][4].startswith("PATH=")
    assert execute["cwd"] == mounts[9]
    assert execute["user"]["uid"] == 1000
    said = {"MY_PARAM=v", "NUMBER=3", "USER=ci", "1000", "nameserver 10.9.8.7", "failed"}
    assert said <= set(done.stdout.splitlines())
    assert "to stderr" in done.stdout  # Another stream, so it may be in a line of the first.
    assert concourse.names_of_newest() == ["main", "", "", "one-off"]


def test_a_refusal_below_containerd_is_read_in_the_build(concourse):
    refused = concourse.task("echo never", params={"REFUSE_ME": "1"})
    assert refused.returncode == 2
    assert "find or create container on worker w0: " in refused.stdout
    assert "OCI runtime create failed: gpu-wrapper: no GPU for you: unknown" in refused.stdout
    assert "\nnever" not in refused.stdout
    assert refused.stdout.endswith("errored\n")
    absent = concourse.task("", run={"path": "/no/such/program"})
    assert absent.returncode == 2
    assert "start process: backend error: Exit status: 500" in absent.stdout


MAKE_IMAGE = """
cat thing/content
cd image
mkdir -p rootfs/proc rootfs/dev rootfs/sys rootfs/tmp
cp -a /bin /etc rootfs/
echo '{"env": ["FROM_IMAGE=1", "PATH=/bin"], "user": "ci"}' >metadata.json
"""
PIPELINE = {
    "resources": [{"name": "thing", "type": "mock", "source": {}}],
    "jobs": [
        {
            "name": "all-kinds",
            "plan": [
                {"get": "thing"},
                {
                    "task": "make-image",
                    "config": {
                        "platform": "linux",
                        "inputs": [{"name": "thing"}],
                        "outputs": [{"name": "image"}],
                        "run": {"path": "sh", "args": ["-ec", MAKE_IMAGE]},
                    },
                },
                {
                    "task": "use-image",
                    "image": "image",
                    "privileged": True,
                    "config": {
                        "platform": "linux",
                        "run": {
                            "path": "sh",
                            "args": ["-c", "id -u; env; cat /proc/self/uid_map"],
                        },
                    },
                },
                {"put": "thing"},
            ],
        }
    ],
}


def test_a_pipeline_of_get_task_image_and_put(concourse):
    pipeline = json.loads(json.dumps(PIPELINE))
    for step in pipeline["jobs"][0]["plan"]:
        if step.get("task") == "make-image":
            step["config"]["rootfs_uri"] = f"raw://{concourse.rootfs}"
    concourse.set_pipeline("p", pipeline)
    assert concourse.fly("unpause-pipeline", "-p", "p").returncode == 0
    done = concourse.fly("trigger-job", "-j", "p/all-kinds", "-w")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {"mock content", "1000", "FROM_IMAGE=1", "USER=ci"} <= set(lines)
    assert any(line.split() == ["0", "0", "4294967295"] for line in lines)

    shapes = {}
    for file in concourse.seen.glob("create.*"):
        config = json.loads(file.read_text())
        for mount in config["mounts"]:
            shapes[mount["destination"]] = config
    for folder in ("/tmp/build/get", "/tmp/build/put"):
        names = {entry.partition("=")[0] for entry in shapes[folder]["process"]["env"]}
        assert {"BUILD_ID", "BUILD_TEAM_NAME", "BUILD_JOB_NAME", "ATC_EXTERNAL_URL"} <= names
    assert "/tmp/build/put/image" in shapes


def test_health_is_bad_when_containerd_hangs_and_the_worker_ends_with_it(concourse):
    worker = children(concourse.worker.pid)[0]
    [containerd] = [
        pid for pid in children(worker) if Path(f"/proc/{pid}/comm").read_text() == "containerd\n"
    ]
    assert os.getpgid(containerd) == containerd
    os.kill(containerd, signal.SIGSTOP)
    assert concourse.health() == 503
    os.kill(containerd, signal.SIGKILL)
    assert concourse.worker.wait(PATIENCE) == 1
