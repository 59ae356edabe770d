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
import time
import urllib.request
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
    running_task,
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


def test_version_says_that_it_is_a_stand_in(concourse):
    program = concourse.release / "bin" / "concourse"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "8.3.0+standin\n"


def test_web_tells_its_versions_and_knows_its_users(concourse):
    url = f"http://127.0.0.1:{concourse.ports['web']}"
    with urllib.request.urlopen(f"{url}/api/v1/info", timeout=PATIENCE) as reply:
        info = json.load(reply)
    assert (info["version"], info["worker_version"]) == ("8.3.0+standin", "3.0")
    refused = concourse.fly("login", "-c", url, "-u", "admin", "-p", "wrong")
    said = "invalid username and password" in refused.stderr
    assert (refused.returncode, said, concourse.workers()) == (1, True, [])


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("CONCOURSE_POSTGRES_PORT", "1", "failed to open the database at"),
        ("CONCOURSE_POSTGRES_PASSWORD", "wrong", "password authentication failed"),
        ("CONCOURSE_TSA_HOST_KEY", "{folder}/openssh_key", "PKCS1 or PKCS8"),
        ("CONCOURSE_TSA_AUTHORIZED_KEYS", "/nowhere", "cannot read /nowhere"),
    ],
)
def test_web_does_not_start_without_what_it_needs(concourse, setting, value, said):
    env = {**concourse.web_env, setting: value.format(folder=concourse.folder)}
    assert concourse.start(env, "web").wait(PATIENCE) == 1
    assert said in concourse.log("web").splitlines()[-1]


@pytest.mark.parametrize(
    ("env", "flags", "said"),
    [
        ({"CONCOURSE_GARDEN_NETWORK_POOL": "10.0.0.0/8"}, (), "CONCOURSE_GARDEN_NETWORK_POOL"),
        ({"CONCOURSE_TSA_WORKER_PRIVATE_KEY": "{folder}/openssh_key"}, (), "PKCS1 or PKCS8"),
        ({}, ("--no-such-flag=1",), "unknown flag `no-such-flag'"),
        ({"CONCOURSE_WORK_DIR": ""}, (), "required flag `--work-dir'"),
    ],
)
def test_worker_does_not_start_without_what_it_needs(concourse, env, flags, said):
    given = {name: value.format(folder=concourse.folder) for name, value in env.items()}
    refused = concourse.start({**concourse.worker_env, **given}, "worker", *flags)
    assert refused.wait(PATIENCE) == 1
    assert said in concourse.log("worker").splitlines()[-1]


def test_a_worker_comes_in_once_its_key_is_known_and_web_is_who_it_should_be(concourse):
    concourse.start_worker(CONCOURSE_TSA_PUBLIC_KEY=f"{concourse.folder}/worker_key.pub")
    until("mismatch", lambda: "remote host public key mismatch" in concourse.log("worker"))
    concourse.signal_worker(signal.SIGTERM)
    assert concourse.worker.wait(PATIENCE) == 0

    concourse.start_worker()
    until("refusal", lambda: "tsa.unknown-worker-key" in concourse.log("web"))
    assert concourse.workers() == []
    assert until("health", lambda: concourse.health() == 200)
    concourse.authorize()
    concourse.worker_is("running")


def test_a_task_shows_its_output_and_status(concourse):
    done = concourse.task("echo to stdout; echo to stderr >&2; id -u; cat /etc/resolv.conf; pwd")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert {"to stdout", "0", "nameserver 10.9.8.7", "succeeded"} <= set(lines)
    assert "to stderr" in done.stdout  # Another stream, so it may be in a line of the first.
    assert any(line.startswith("/tmp/build/") and len(line) == 19 for line in lines)
    failed = concourse.task("echo so far; exit 7")
    assert failed.returncode == 7
    assert failed.stdout.endswith("so far\nfailed\n")


def test_the_container_has_the_shape_of_concourse(concourse):
    run = {"path": "sh", "args": ["-c", "env | sort; id -u"], "user": "ci"}
    done = concourse.task("", params={"MY_PARAM": "v", "NUMBER": 3}, run=run)
    assert done.returncode == 0, done.stdout
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
    assert {"MY_PARAM=v", "NUMBER=3", "USER=ci", "1000"} <= set(done.stdout.splitlines())


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
    paused = concourse.fly("trigger-job", "-j", "p/all-kinds", "-w")
    assert "paused" in paused.stderr
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

    build = json.loads(concourse.fly("builds", "--json").stdout)[0]
    assert (build["pipeline"], build["job"], build["name"]) == ("p", "all-kinds", "1")
    assert build["status"] == "succeeded"
    volumes = concourse.folder / "work/volumes/live"
    until("end of the build's volumes", lambda: not [*volumes.glob(f"{build['id']}.*")])


def test_a_failed_step_has_as_many_attempts_as_it_may(concourse):
    script = "echo again >>/tried; cat /tried; [ $(wc -l </tried) = 3 ]"
    config = json.loads(Path(concourse.task_file(script)).read_text())
    for attempts, status, lines in ((2, 1, 1 + 2), (3, 0, 1 + 2 + 3)):
        (concourse.rootfs / "tried").unlink(missing_ok=True)
        step = {"task": "try", "attempts": attempts, "config": config}
        concourse.set_pipeline("t", {"jobs": [{"name": "try", "plan": [step]}]})
        assert concourse.fly("unpause-pipeline", "-p", "t").returncode == 0
        done = concourse.fly("trigger-job", "-j", "t/try", "-w")
        assert done.returncode == status, done.stdout
        assert done.stdout.splitlines().count("again") == lines


def test_tags_decide_who_takes_a_step(concourse):
    concourse.signal_worker(signal.SIGTERM)
    assert concourse.worker.wait(PATIENCE) == 0
    concourse.worker_is("stalled")
    assert concourse.health() == 0
    concourse.start_worker("gpu", "gpu-devices=0,1")
    concourse.worker_is("running", "gpu", "gpu-devices=0,1")
    assert concourse.task("true", "--tag", "gpu").returncode == 0
    assert concourse.task("true", "--tag", "gpu", "--tag", "gpu-devices=0,1").returncode == 0
    for flags, asked in (
        ((), "platform 'linux'"),
        (("--tag", "gpu", "--tag", "tpu"), "platform 'linux', tag 'gpu', tag 'tpu'"),
    ):
        nobody = concourse.task("true", *flags)
        assert nobody.returncode == 2
        assert f"no workers satisfying: {asked}\n" in nobody.stdout


def test_a_running_build_survives_restarts_of_worker_and_web(concourse):
    with running_task(concourse, "seq 1 20000; exit 5") as (fly, go):
        concourse.signal_worker(signal.SIGTERM)
        assert concourse.worker.wait(PATIENCE) == 0
        go.touch()  # it prints and ends while neither worker nor containerd is there
        time.sleep(1)
        concourse.start_worker("gpu", "new-tag")
        output, _ = fly.communicate(timeout=PATIENCE)
        concourse.worker_is("running", "gpu", "new-tag")
    assert fly.returncode == 5, output[-500:]
    assert output.splitlines() == [*map(str, range(1, 20001)), "failed"]

    with running_task(concourse, "echo after; exit 6") as (fly, go):
        concourse.web.terminate()
        assert concourse.web.wait(PATIENCE) == 0
        concourse.start_web(CONCOURSE_POSTGRES_SOCKET=str(concourse.folder / "pg"))
        concourse.signal_worker(signal.SIGKILL)
        concourse.worker.wait(PATIENCE)
        concourse.start_worker("gpu", http_proxy="http://proxy:3128")
        concourse.worker_is("running", "gpu")
        go.touch()
        output, _ = fly.communicate(timeout=PATIENCE)
    assert (fly.returncode, output) == (6, "after\nfailed\n")


def test_a_build_can_be_aborted(concourse):
    with running_task(concourse, "true") as (fly, _):
        assert "http_proxy=http://proxy:3128" in concourse.newest("exec")["env"]
        assert concourse.names_of_newest() == ["main", "", "", "one-off"]
        number = json.loads(concourse.fly("builds", "--json").stdout)[0]["id"]
        assert concourse.fly("abort-build", "-b", str(number)).returncode == 0
        output, _ = fly.communicate(timeout=PATIENCE)
    assert output == "aborted\n"


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
    concourse.start_worker("gpu")
    concourse.worker_is("running", "gpu")
    until("health", lambda: concourse.health() == 200)


def test_retire_waits_for_the_build_and_needs_a_known_key(concourse):
    with running_task(concourse, "echo after") as (fly, go):
        (concourse.folder / "authorized").write_text("")
        told = len(concourse.log("web"))
        concourse.web.send_signal(signal.SIGHUP)
        until("reload", lambda: '"count": 0' in concourse.log("web")[told:])
        concourse.signal_worker(signal.SIGUSR2)
        until("refusal", lambda: '"command": "retire-worker"' in concourse.log("worker"))
        assert [row["state"] for row in concourse.workers()] == ["running"]
        concourse.authorize()
        concourse.worker_is("retiring", "gpu")
        assert concourse.worker.poll() is None
        go.touch()
        output, _ = fly.communicate(timeout=PATIENCE)
    assert (fly.returncode, output) == (0, "after\nsucceeded\n")
    assert concourse.worker.wait(PATIENCE) == 0
    assert concourse.workers() == []


def test_sigterm_while_retiring_deletes_the_worker_at_once(concourse):
    concourse.start_worker("gpu")
    concourse.worker_is("running", "gpu")
    with running_task(concourse, "true") as (fly, _):
        concourse.signal_worker(signal.SIGUSR2)
        concourse.worker_is("retiring", "gpu")
        concourse.signal_worker(signal.SIGTERM)
        assert concourse.worker.wait(PATIENCE) == 0
        assert concourse.workers() == []
        output, _ = fly.communicate(timeout=PATIENCE)
    assert fly.returncode == 2
    assert "worker 'w0' disappeared" in output


def test_a_task_waits_while_its_worker_has_as_many_as_it_may_have(concourse):
    concourse.web.terminate()
    assert concourse.web.wait(PATIENCE) == 0
    concourse.start_web(
        CONCOURSE_CONTAINER_PLACEMENT_STRATEGY="volume-locality,limit-active-tasks",
        CONCOURSE_MAX_ACTIVE_TASKS_PER_WORKER="1000",
    )
    concourse.start_worker("gpu", CONCOURSE_MAX_ACTIVE_TASKS="1")
    concourse.worker_is("running", "gpu")
    with running_task(concourse, "echo after") as (first, go):
        numbers = [build["id"] for build in json.loads(concourse.fly("builds", "--json").stdout)]
        with running_task(concourse, "true", begun="no suitable workers found") as (fly, _):
            assert concourse.fly("abort-build", "-b", str(numbers[0] + 1)).returncode == 0
            output, _ = fly.communicate(timeout=PATIENCE)
            assert output == "interrupted\naborted\n"
        with running_task(concourse, "true", begun="no suitable workers found") as (fly, _):
            go.touch()
            output, _ = first.communicate(timeout=PATIENCE)
            assert output == "after\nsucceeded\n"
            output, _ = fly.communicate(timeout=PATIENCE)
            assert output.splitlines()[1:] == ["before", "succeeded"]


def test_a_finished_step_can_be_hijacked(concourse):
    assert concourse.task("touch /scratch/left; exit 1", "--tag", "gpu").returncode == 1
    number = str(json.loads(concourse.fly("builds", "--json").stdout)[0]["id"])
    step = ("hijack", "-b", number, "-s", "one-off", "--")
    done = concourse.fly(*step, "sh", "-c", "ls /scratch; pwd; exit 3")
    assert done.returncode == 3
    assert done.stdout.startswith("left\n/tmp/build/")
    refused = concourse.fly(*step, "/no/such/program")
    assert refused.returncode == 255
    assert "start process: backend error: Exit status: 500" in refused.stderr
    nobody = concourse.fly("hijack", "-b", "0", "-s", "one-off", "true")
    assert "no containers matched" in nobody.stderr
