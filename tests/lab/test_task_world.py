# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What a step sees of its worker: network, proxies, CAs, limits, and folders of task-mounts."""

import pytest

from tests import certificates
from tests.lab import concourse
from tests.lab.builds import Build
from tests.lab.juju import agent
from tests.lab.site import AWAY, READY

PROXIES = {"HTTP": "http://10.9.8.7:3128", "HTTPS": "http://10.9.8.7:3129", "NO": "10.77.0.0/24"}
LIMITS = {"cpu": 512, "memory": 256 << 20}
LOOK = """
grep nameserver /etc/resolv.conf
cat /sys/class/net/eth0/mtu 2>&- | sed 's/^/mtu /'
env | grep -i _proxy | sort
for limit in l n u; do echo "ulimit -$limit $(ulimit -$limit)"; done
cd /sys/fs/cgroup
for file in memory/memory.limit_in_bytes memory.max cpu/cpu.shares cpu.weight; do
  [ ! -e $file ] || echo "$file $(cat $file)"
done
"""
BUNDLES = "/run/containerd/io.containerd.runtime.v2.task/concourse"
# The unit has no bounds there, but a container's host may: lower ones show whose a step's are.
DROP_IN = "/run/systemd/system/concourse-worker.service.d"
LIMITED = f"""
mkdir -p {DROP_IN}
printf '[Service]\\nLimitMEMLOCK=1M\\nLimitNOFILE=4321\\nLimitNPROC=8765\\n' >{DROP_IN}/low.conf
systemctl daemon-reload
"""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
FOLDERS = """
install -d -m 755 /srv/datasets /srv/datasets/set
install -d -m 700 /srv/cache
install -d -m 1777 /srv/cache/uv
echo 42 >/srv/datasets/set/answer
ln -sfn /etc/machine-id /srv/datasets/out
ln -sfn /etc /srv/aside
"""
WITHOUT = "rm -rf /srv/datasets /srv/cache /srv/aside"
MOUNTS = "/srv/datasets, /srv/cache/uv:/root/.cache/uv:rw"
HOSTILE = "/srv/datasets\n/etc"
# A link leads to the container's own files, of which that is none.
USES = """
cat /srv/datasets/set/answer
touch /srv/datasets/set/mine 2>&1 | grep -o 'Read-only file system'
cat /root/.cache/uv/left 2>&- || echo nothing left
date >/root/.cache/uv/left
cat /srv/datasets/out 2>&- || echo leads nowhere
ls -d /srv/cache /srv/cache/uv 2>&1 | grep -c 'No such file'
"""


@pytest.fixture(scope="module")
def worker_with_all(site):
    """A worker with every option that its steps see, and no trace of folders afterwards."""
    shown = site.sh("systemctl show -p LimitMEMLOCK,LimitNOFILE,LimitNPROC concourse-worker")
    assert {*shown.split()} == {
        *("LimitMEMLOCK=infinity", "LimitNOFILE=1048576", "LimitNPROC=infinity"),
    }
    site.sh(LIMITED)
    site.sh(FOLDERS)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PROXIES.items():
            patch.setitem(agent.PROXIES, name, value)
        site.configure(
            worker_settings="dns-server=10.9.8.7, dns-server=10.9.8.6, mtu=1400",
            worker_ca_certificates=certificates.ca(),
            task_mounts=MOUNTS,
        )
        assert site.status() == READY
        site.tags()
        yield site
    site.sh(f"rm -r {DROP_IN}; systemctl daemon-reload")
    site.configure(reset=("worker-settings", "worker-ca-certificates", "task-mounts"))
    site.sh(WITHOUT)
    assert site.sh("ls /etc/gpu-ci/folders.json 2>&-; true") == ""
    assert site.status() == READY
    site.tags()


def test_a_step_sees_the_network_the_proxies_the_cas_and_the_limits(worker_with_all):
    site = worker_with_all
    root = {"platform": "linux", **site.fly.root, "container_limits": LIMITS}
    config = {**root, "params": {"GPU_COUNT": "1"}, "run": {"path": "sh", "args": ["-c", LOOK]}}
    done = site.fly.run("execute", "-c", str(site.fly.config_file(config)), "--tag=gpu")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.replace("\r", "").splitlines()
    assert [line for line in lines if line.startswith("nameserver")] == [
        "nameserver 10.9.8.7",
        "nameserver 10.9.8.6",
    ]
    wanted = {
        f"http_proxy={PROXIES['HTTP']}",
        f"https_proxy={PROXIES['HTTPS']}",
        f"no_proxy={PROXIES['NO']}",
        # What CUDA pins, and what a training job has open.
        *("ulimit -l 1024", "ulimit -n 4321", "ulimit -u 8765"),
    }
    if concourse.is_real():  # the stand-in's containers have no way out
        wanted.add("mtu 1400")
    assert wanted <= {*lines}, done.stdout
    assert {f"memory/memory.limit_in_bytes {256 << 20}", f"memory.max {256 << 20}"} & {*lines}
    assert {"cpu/cpu.shares 512", "cpu.weight 20"} & {*lines}, done.stdout


def test_a_get_has_the_operators_ca_last_and_no_folder(worker_with_all):
    site = worker_with_all
    before = {*site.sh(f"ls {BUNDLES}").split()}
    done = site.fly.get(["gpu"])
    assert done.returncode == 0, done.stdout
    handles = {*site.sh(f"ls {BUNDLES}").split()} - before
    assert handles, "there was no container"
    files = " ".join(f"{BUNDLES}/{handle}/config.json" for handle in handles)
    assert site.sh(f"grep -l /srv/datasets {files}; true") == ""
    said = done.stdout
    if concourse.is_real():  # its mock shows no file, but has a shell
        look = ("--", "tail", "-n", "2", CERTIFICATES)
        job = ("hijack", "-j", "lab-get/get", "-s", "thing", "--step-type", "get")
        status, said = site.fly.on_terminal(*job, *look)
        assert status == 0, said
    assert all(line in said for line in certificates.ca().splitlines()[-2:]), said


@pytest.mark.skipif(not concourse.is_real(), reason="the stand-in counts no containers")
def test_no_step_begins_that_would_have_one_container_too_many(site):
    site.configure(worker_settings="max-containers=1")
    site.tags()
    # One of before may be there still; then the first is one too many.
    first = Build(site.fly, *site.fly.task(["sleep", "20"], ["gpu"], {"GPU_COUNT": "0"}))
    first.line(".*selected worker")
    second = site.task("true", params={"GPU_COUNT": "0"})
    first.wait()
    site.configure(reset=("worker-settings",))
    site.tags()
    assert "max containers reached" in first.output + second.stdout


def said_by(done):
    return done.stdout.replace("\r", "").splitlines()


def test_a_task_reads_a_data_set_and_writes_to_a_cache(worker_with_all):
    """The next one, too, which has a GPU."""
    folders = worker_with_all
    first, second = (folders.task(USES, params={"GPU_COUNT": count}) for count in "01")
    assert first.returncode == second.returncode == 0, first.stdout + second.stdout
    for line in ("42", "Read-only file system", "nothing left", "leads nowhere", "2"):
        assert line in said_by(first), first.stdout
    for line in ("42", "Read-only file system", "leads nowhere", "2"):
        assert line in said_by(second), second.stdout
    assert "nothing left" not in said_by(second), "the cache of the first task is gone"
    assert folders.sh("cat /etc/machine-id").strip() not in first.stdout
    assert folders.sh("ls /srv/datasets/set") == "answer\n"


def test_a_folder_whose_way_somebody_could_change_is_refused_until_it_is_mended(worker_with_all):
    """Then an option that nothing can mount: tasks keep what they had."""
    folders = worker_with_all
    why = "parent directory /srv must be root-owned and not group- or world-writable"
    folders.sh("chmod o+w /srv")
    done = folders.task("echo begun", params={"GPU_COUNT": "0"})
    folders.lab.model.update_status("worker/0")
    folders.lab.settle()
    said = folders.status()
    folders.sh("chmod 755 /srv")
    assert done.returncode
    assert f"task-mounts folder /srv/datasets on this worker is unusable: {why}" in done.stdout
    assert "begun" not in said_by(done)
    assert said[0] == "blocked"
    assert f"task-mounts is unusable (/srv/datasets: {why}): " in said[1]

    folders.configure(task_mounts=HOSTILE)
    kind, text = folders.status()
    assert kind == "blocked"
    assert text.startswith("task-mounts ")
    assert "is not a folder" in text
    done = folders.task("cat /srv/datasets/set/answer", params={"GPU_COUNT": "0"})
    folders.configure(task_mounts=MOUNTS)
    assert "42" in said_by(done), done.stdout


def test_a_job_that_has_an_output_in_the_place_of_one_is_refused(worker_with_all):
    folders = worker_with_all
    config = {
        "platform": "linux", **folders.fly.root, "params": {"GPU_COUNT": "0"},
        "outputs": [{"name": "mine", "path": "/srv/datasets/set"}],
        "run": {"path": "true"},
    }  # fmt: skip
    done = folders.fly.run("execute", "-c", str(folders.fly.config_file(config)), "--tag=gpu")
    assert done.returncode
    assert "gpu-ci-worker: task-mounts-conflict: path /srv/datasets/set " in done.stdout


@pytest.mark.skipif(not concourse.is_real(), reason="the stand-in has one team")
def test_what_is_one_teams_is_on_its_own_worker(worker_with_all):
    """As docs/how-to/share-caches.md says: the worker takes that team's steps alone."""
    folders = worker_with_all
    fly = folders.fly
    set_team = ("set-team", "-n", "team-a", "--local-user=admin", "--non-interactive")
    assert fly.run(*set_team).returncode == 0
    run = {"path": "cat", "args": ["/srv/datasets/set/answer"]}
    config = {"platform": "linux", **fly.root, "params": {"GPU_COUNT": "0"}, "run": run}
    task = ("execute", "-c", str(fly.config_file(config)), "--tag=gpu")
    folders.configure(only_team="team-a")
    try:
        folders.tags()
        given, refused = fly.run(*task, "--team=team-a"), fly.run(*task)
    finally:
        folders.configure(reset=("only-team",))
        folders.tags()
    assert "42" in said_by(given), given.stdout
    assert refused.returncode
    assert AWAY in refused.stdout, refused.stdout
