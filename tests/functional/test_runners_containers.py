# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Containers in jobs of runners, by Debian's Docker under a real systemd."""

import json
import re
import shlex

import pytest

from ci.runners.settings import Limits
from tests.functional import engine_machine, runners_engines, runners_machine, selftest_machine
from tests.functional.runners_engines import BOX
from tests.functional.runners_machine import ANY, GPU, LATER, slice_of

pytestmark = [
    *selftest_machine.NEEDS,
    pytest.mark.skipif(not engine_machine.HAS_ENGINES, reason="there is no dockerd"),
]


@pytest.fixture(scope="module")
def up():
    with runners_engines.started("containers") as site:
        yield site


@pytest.fixture
def site(up):
    up.wait(up.is_ready)
    yield up
    up.settle()


# Prints what a process in a container may open, and what its variables say.
SEES = (
    "for n in 0 1; do mknod /n$n c 195 $n 2>/dev/null; "
    "for f in /n$n /dev/nvidia$n; do cat $f 2>&1; done; done; env"
)
RUN = "docker run --network none"


def look(*options):
    """A line of a job that looks from inside a container."""
    words = shlex.join([*options, BOX, "sh", "-c", SEES])
    return f"{RUN} --rm {words} || echo REFUSED $?"


def done(site, labels, script):
    """The log of a job, once it has succeeded."""
    run = site.push(one=(labels, script))
    site.result(run, "one")
    return "\n".join(site.log(run, "one"))


def switch(site, **settings):
    """Have runners with other settings, and none from before."""
    before = site.units()
    site.configure(**{"engine": "docker", **settings})
    site.wait(lambda: site.is_ready() and not before & site.units())


def holders(site):
    return [*site.box.leases()["holders"].values()]


def docker(site, words):
    return site.see(f"docker {words}").split()


def opened(log):
    """The GPUs whose nodes could be opened: simulated ones have no driver and answer ENXIO."""
    return {*re.findall(r"/(?:dev/nvidia|n)([01])': No such device", log)}


def test_a_container_has_its_jobs_gpus_and_no_more(site):
    log = done(site, GPU, f"{look('--gpus', 'all')}; echo UUID $NVIDIA_VISIBLE_DEVICES")
    (uuid,) = [line.split()[1] for line in log.splitlines() if line.startswith("UUID ")]
    assert opened(log) == {str(site.uuids.index(uuid))}
    assert log.count("Operation not permitted") == 1
    (told,) = [line for line in log.splitlines() if line.startswith("GPU_CI_DEVICES=")]
    assert [one["uuid"] for one in json.loads(told.partition("=")[2])] == [uuid]


@pytest.mark.parametrize(
    "options", [("--gpus", "2"), ("-e", "GPU_COUNT=2"), ("-e", "NVIDIA_VISIBLE_DEVICES=0,1")]
)
def test_a_container_that_requests_more_than_its_job_has_is_refused(site, options):
    log = done(site, GPU, look(*options))
    assert "not-in-job: this container requests " in log
    assert "REFUSED" in log
    assert opened(log) == set()


def test_in_a_job_without_a_gpu_containers_get_none(site):
    both = site.push(a=(GPU, "/srv/job hold go"), b=(GPU, "/srv/job hold go"))
    site.wait_for(both, a="in_progress", b="in_progress")
    log = done(site, ANY, look("--gpus", "all"))
    assert "has only what its job has: none" in log
    assert opened(log) == set()
    site.let_go("go")


def test_a_container_cannot_choose_a_runtime_that_gives_it_any_device(site):
    both = ("--device=/dev/nvidia0", "--device=/dev/nvidia1")
    log = done(site, GPU, look("--runtime=runc", *both))
    assert "not-in-job" in log
    assert opened(log) == set()


@pytest.mark.parametrize(
    "options", [("--runtime=runc",), ("--privileged",), ("--runtime=runc", "-v", "/dev:/dev")]
)
def test_a_container_without_a_request_has_no_gpu_whatever_runtime_it_names(site, options):
    log = done(site, GPU, look(*options))
    assert opened(log) == set()


def test_job_and_containers_have_one_lease_and_an_exec_its_variables(site):
    script = (
        f"{RUN} -d --name both --gpus all {BOX} sleep 600; docker exec both env; /srv/job hold go"
    )
    run = site.push(one=(GPU, script))
    site.wait_for(run, one="in_progress")
    site.wait(lambda: docker(site, "ps -q"))
    unit = site.runner_of(run, "one")
    site.wait(lambda: any('job "one"' in one["who"] for one in holders(site)))
    # One for this job, and one for the idle runner.
    assert len(holders(site)) == 2
    top = site.see("docker inspect -f '{{.State.Pid}}' both").strip()
    assert f"/{slice_of(unit)}/" in site.see(f"cat /proc/{top}/cgroup")
    site.let_go("go")
    site.result(run, "one")
    assert "GPU_COUNT=1" in site.log(run, "one")


# No empty first line: Gitea 1.26 cannot read its own form of such a script.
LEAVES = "; ".join(
    (
        "docker network create left",
        "docker volume create left-too",
        f"{RUN} -d --restart always --gpus all -v left-behind:/left {BOX} sleep 600",
        "/srv/job hold go",
    )
)


@pytest.mark.parametrize("end", ["job", "unit", "daemon"])
def test_what_a_job_has_made_in_the_engine_ends_with_it_and_nothing_else(site, end):
    site.sh(f"{RUN} -d --name others {BOX} sleep 600; docker volume create others")
    before = docker(site, "network ls -q")
    run = site.push(one=(GPU, LEAVES))
    site.wait(lambda: len(docker(site, "ps -q")) == 2)
    site.wait(site.holders)
    unit = site.runner_of(run, "one")
    (mine,) = site.runners()[unit]["gpus"]
    match end:
        case "job":
            site.let_go("go")
        case "unit":
            site.sh(f"systemctl kill -s KILL {unit}")
        case "daemon":
            # systemd does not begin it again before the test has looked.
            daemon = runners_machine.DAEMON
            site.sh(f"systemctl kill -s KILL {daemon}; systemctl stop {daemon}")
            site.let_go("go")
            site.wait(lambda: unit not in site.units())
            # Its container keeps the GPU.
            assert [mine] in [one["gpus"] for one in holders(site) if "idle" not in one["who"]]
            site.sh(f"systemctl start {daemon}")
    site.wait(lambda: docker(site, "ps -a --format {{.Names}}") == ["others"])
    site.wait(lambda: docker(site, "network ls -q") == before)
    site.wait(lambda: docker(site, "volume ls -q") == ["others"])
    site.wait(site.is_ready)
    site.wait(lambda: not site.see(f"find /sys/fs/cgroup -name '{slice_of(unit)}'"))
    site.sh("docker rm -f others; docker volume rm others")


@pytest.mark.skipif(
    not runners_machine.IS_REAL, reason="the stand-in of Gitea's runner makes no containers"
)
def test_a_jobs_own_container_and_its_services_have_the_jobs_gpu(site):
    image = f"{BOX}:latest"
    words = "--gpus all --entrypoint /bin/sleep"
    run = site.push(
        one=(
            GPU,
            f"set +e; {SEES}; sleep 10",
            {
                "container": {"image": image, "options": "--gpus all"},
                "services": {"db": {"image": image, "options": words, "cmd": ["600"]}},
                "defaults": {"run": {"shell": "sh"}},
            },
        )
    )
    site.wait(lambda: len(docker(site, "ps -q")) == 2)
    nodes = "docker exec $one sh -c 'cat /dev/nvidia0 /dev/nvidia1' 2>&1"
    seen = site.see(f"for one in $(docker ps -q); do {nodes}; done")
    (mine,) = site.runners()[site.runner_of(run, "one")]["gpus"]
    number = site.uuids.index(mine)
    assert seen.count(f"/dev/nvidia{number}': No such device") == 2
    assert seen.count(f"/dev/nvidia{1 - number}': No such file") == 2
    site.wait(lambda: site.states(run)["one"] == "success")
    assert opened("\n".join(site.log(run, "one"))) == {str(number)}
    # Also what its runner keeps for the next job.
    site.wait(lambda: not docker(site, "ps -aq") and not docker(site, "volume ls -q"))


def test_the_engines_socket_is_its_jobs_alone(site):
    path = "/run/gpu-ci-runners/engines"
    script = (
        "/srv/job connect /run/docker.sock; ls -d $(dirname ${DOCKER_HOST#unix://}); "
        f"ls {path} || echo HIDDEN; docker version --format '{{{{.Server.Version}}}}'"
    )
    log = done(site, GPU, script)
    assert '{"status": "EACCES"}' in log
    assert "HIDDEN" in log
    alice = site.box.command("alice", "ls", path)
    assert site.machine.run(alice, check=False).returncode != 0
    assert site.see("ls /run/gpu-ci-engine").strip() == ""


def test_limits_count_for_containers_too(site):
    switch(site, limits=Limits(tasks=64))
    many = "for n in $(seq 100); do sleep 3 & done; wait; echo ALL"
    words = shlex.join([BOX, "sh", "-c", many])
    log = done(site, ANY, f"{RUN} --rm {words} || true")
    assert "fork" in log
    switch(site)


def test_an_engine_that_does_not_listen_holds_runners_back_and_recovers(site):
    site.sh("systemctl stop docker.socket docker")
    site.sh("systemctl kill -s KILL 'gpu-ci-runner-*'")
    site.wait(lambda: "docker does not listen" in site.report()["text"])
    site.wait(lambda: site.listed() == {})
    site.sh("systemctl start docker.socket docker")
    site.wait(site.is_ready, LATER)
    site.wait(lambda: site.report()["text"] == "", LATER)


def test_podmans_socket_does_too(site):
    site.sh("systemctl start podman.socket")
    switch(site, engine="podman")
    leaves = f"{RUN} -d -v left:/left -e GPU_COUNT=1 {BOX} sleep 600"
    log = done(site, GPU, f"{look('-e', 'GPU_COUNT=all')}; {leaves}")
    assert len(opened(log)) == 1, log
    assert "REFUSED" not in log
    assert "REFUSED" in done(site, GPU, look("-e", "GPU_COUNT=2"))
    site.wait(lambda: not site.see("podman ps -aq; podman volume ls -q"))
    switch(site)
