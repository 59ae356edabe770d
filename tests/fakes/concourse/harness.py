# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A PostgreSQL and namespaces of their own for a stand-in under test, and its processes.

The worker runs in mount and process namespaces of its own, with its own /run and /opt, so that it
meets no other containerd and leaves none behind.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.concourse.build import TOOL_PATH

CLEAN_ENV = {"PATH": TOOL_PATH, "LANG": "C.UTF-8"}
# How long a machine at a load of 20 may take for anything here, in seconds.
ROOT = Path(__file__).parents[3]
PATIENCE = 90
WRAPPER = """#!/bin/sh
# Keeps what containerd asks of runc; refuses a container that asks to be refused.
case " $* " in
*" create "*)
    cp config.json "{log}/create.$(basename "$PWD").json"
    if grep -q REFUSE_ME=1 config.json; then
        echo '{{"level":"error","msg":"gpu-wrapper: no GPU for you"}}' >>"$PWD/log.json"
        exit 1
    fi ;;
*" --process "*)
    previous=
    for word; do
        [ "$previous" != --process ] || cp "$word" "{log}/exec.$(basename "$PWD").json"
        previous=$word
    done ;;
esac
exec {runc} "$@"
"""
LAUNCHER = """#!/bin/sh
PATH={wrapper}:$PATH
export PATH
exec {containerd} "$@"
"""


def missing() -> str | None:
    """Why these tests cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root for containers"
    programs = ("containerd", "ctr", "runc", "busybox", "gcc", "runuser", "unshare", "nsenter")
    absent = [name for name in programs if shutil.which(name, path=TOOL_PATH) is None]
    if not postgres_folder():
        absent.append("postgresql")
    return f"not installed: {', '.join(absent)}" if absent else None


def postgres_folder() -> Path | None:
    """The folder of the newest PostgreSQL's programs."""
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def until(what, condition, seconds=PATIENCE):
    """Wait for a true value of ``condition()`` and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    pytest.fail(f"no {what} after {seconds} s")
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def private_namespaces():
    """Mount and process namespaces with an empty /run and /opt; gives their first pid."""
    script = (
        "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /opt && echo ready && exec sleep 9999"
    )
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with subprocess.Popen(
        [*argv, "sh", "-c", script], stdout=subprocess.PIPE, env=CLEAN_ENV, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield children(process.pid)[0]
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def postgresql(folder: Path):
    """A fresh PostgreSQL on its own port; gives the port."""
    data, port, bin_folder = folder / "pg", free_port(), postgres_folder()
    data.mkdir()
    shutil.chown(data, "postgres")
    run = ["runuser", "-u", "postgres", "--"]
    secret = folder / "pg-password"
    secret.write_text("db secret")
    secret.chmod(0o644)
    initdb = ["initdb", "-D", data, "-A", "scram-sha-256", "-U", "atc", "--no-sync"]
    start = [bin_folder / initdb[0], *initdb[1:], f"--pwfile={secret}"]
    subprocess.run([*run, *start], check=True, env=CLEAN_ENV, cwd="/", capture_output=True)
    server = [bin_folder / "postgres", "-D", data, "-k", data, "-h", "127.0.0.1", "-p", str(port)]
    with (folder / "pg.log").open("wb") as log:
        process = subprocess.Popen([*run, *server], stderr=log, stdout=log, env=CLEAN_ENV, cwd="/")
    try:
        until("PostgreSQL", lambda: (data / "postmaster.pid").exists() and reachable(port))
        yield port
    finally:
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)
        process.wait(PATIENCE)


def reachable(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Concourse:
    """A release of the stand-in, its keys, its settings, and the processes that run."""

    def __init__(self, folder: Path, namespaces: int, database: int) -> None:
        self.folder, self.namespaces = folder, namespaces
        self.release = folder / "concourse"
        self.ports = {name: free_port() for name in ("web", "tsa", "health", "garden", "volumes")}
        self.seen = folder / "seen"
        self.seen.mkdir()
        self._keys()
        self._wrapper()
        self.web_env = {
            "CONCOURSE_POSTGRES_HOST": "127.0.0.1",
            "CONCOURSE_POSTGRES_PORT": str(database),
            "CONCOURSE_POSTGRES_USER": "atc",
            "CONCOURSE_POSTGRES_PASSWORD": "db secret",
            "CONCOURSE_POSTGRES_DATABASE": "postgres",
            "CONCOURSE_POSTGRES_SSLMODE": "disable",
            "CONCOURSE_SESSION_SIGNING_KEY": str(folder / "web_key"),
            "CONCOURSE_TSA_HOST_KEY": str(folder / "web_key"),
            "CONCOURSE_TSA_AUTHORIZED_KEYS": str(folder / "authorized"),
            "CONCOURSE_TSA_BIND_PORT": str(self.ports["tsa"]),
            "CONCOURSE_BIND_PORT": str(self.ports["web"]),
            "CONCOURSE_EXTERNAL_URL": f"http://127.0.0.1:{self.ports['web']}",
            "CONCOURSE_ADD_LOCAL_USER": "admin:ad:min",
            "CONCOURSE_MAIN_TEAM_LOCAL_USER": "admin",
            "CONCOURSE_PEER_ADDRESS": "127.0.0.1",
        }
        self.worker_env = self._worker_settings()
        self.web = self.worker = None
        self.rootfs = self._rootfs()

    def _worker_settings(self) -> dict[str, str]:
        return {
            "CONCOURSE_NAME": "w0",
            "CONCOURSE_TSA_HOST": f"127.0.0.1:{self.ports['tsa']}",
            "CONCOURSE_TSA_PUBLIC_KEY": str(self.folder / "web_key.pub"),
            "CONCOURSE_TSA_WORKER_PRIVATE_KEY": str(self.folder / "worker_key"),
            "CONCOURSE_WORK_DIR": str(self.folder / "work"),
            "CONCOURSE_CONTAINERD_BIN": str(self.folder / "launcher"),
            "CONCOURSE_CONTAINERD_DNS_SERVER": "10.9.8.7",
            "CONCOURSE_BIND_PORT": str(self.ports["garden"]),
            "CONCOURSE_BAGGAGECLAIM_BIND_PORT": str(self.ports["volumes"]),
            "CONCOURSE_HEALTHCHECK_BIND_IP": "127.0.0.1",
            "CONCOURSE_HEALTHCHECK_BIND_PORT": str(self.ports["health"]),
            "CONCOURSE_BAGGAGECLAIM_DRIVER": "naive",
            "CONCOURSE_RESOURCE_TYPES": str(self.release / "resource-types"),
        }

    def _keys(self) -> None:
        for name, kind in (("web_key", "PEM"), ("worker_key", "PKCS8")):
            argv = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-m", kind]
            subprocess.run([*argv, "-f", self.folder / name], check=True, env=CLEAN_ENV)
        (self.folder / "authorized").write_text("# workers\n")

    def _wrapper(self) -> None:
        wrapper = self.folder / "wrapper"
        wrapper.mkdir()
        runc, containerd = (self.release / "bin" / name for name in ("runc", "containerd"))
        (wrapper / "runc").write_text(WRAPPER.format(log=self.seen, runc=runc))
        (self.folder / "launcher").write_text(
            LAUNCHER.format(wrapper=wrapper, containerd=containerd)
        )
        for path in (wrapper / "runc", self.folder / "launcher"):
            path.chmod(0o755)

    def _rootfs(self) -> Path:
        rootfs = self.folder / "rootfs"
        rootfs.mkdir()
        packed = self.release / "resource-types" / "mock" / "rootfs.tgz"
        subprocess.run(["tar", "-xzf", packed, "-C", rootfs], check=True, env=CLEAN_ENV)
        with (rootfs / "etc" / "passwd").open("a") as passwd:
            passwd.write("ci:x:1000:1000::/:/bin/sh\n")
        subprocess.run(["chown", "-hR", "4294967294:4294967294", rootfs], check=True)
        return rootfs

    def authorize(self) -> None:
        (self.folder / "authorized").write_text((self.folder / "worker_key.pub").read_text())
        self.web.send_signal(signal.SIGHUP)

    def start(self, env, *argv: str, prefix=()) -> subprocess.Popen:
        """Start ``concourse`` as a unit would, with its log appended to a file."""
        program = [*prefix, str(self.release / "bin" / "concourse"), *argv]
        with (self.folder / f"{argv[0]}.log").open("ab") as log:
            return subprocess.Popen(program, env={**CLEAN_ENV, **env}, stderr=log, stdout=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start_web(self) -> None:
        self.web = self.start(self.web_env, "web")
        until("web", lambda: reachable(self.ports["web"]))

    def start_worker(self, **env: str) -> None:
        enter = ["nsenter", f"--target={self.namespaces}", "--mount", "--pid", "--"]
        self.worker = self.start({**self.worker_env, **env}, "worker", prefix=enter)

    def fly(self, *argv: str) -> subprocess.CompletedProcess[str]:
        program = [str(self.folder / "fly"), "-t", "lab", *argv]
        env = {**CLEAN_ENV, "HOME": str(self.folder)}
        return subprocess.run(
            program, env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
        )

    def login(self) -> None:
        url = f"http://127.0.0.1:{self.ports['web']}"
        done = self.fly("login", "-c", url, "-u", "admin", "-p", "ad:min")
        assert done.returncode == 0, done.stderr

    def workers(self) -> list[dict]:
        return json.loads(self.fly("workers", "--json").stdout)

    def worker_is(self, state: str) -> None:
        until(f"worker {state}", lambda: [row["state"] for row in self.workers()] == [state])

    def task(self, script: str, **config) -> subprocess.CompletedProcess[str]:
        return self.fly("execute", "-c", self.task_file(script, **config))

    def names_of_newest(self) -> list[str]:
        """What the charm's program learns of the newest container: its team, and so on."""
        settings = self.folder / "web.env"
        settings.write_text("".join(f"{name}={text}\n" for name, text in self.web_env.items()))
        code = (
            "import pathlib, sys; from ci.concourse.api import build_info_program as names; "
            "sys.exit(names.main(sys.argv[2:], pathlib.Path(sys.argv[1]), bool))"
        )
        handle = self.newest("create")["hostname"]
        done = subprocess.run(
            [sys.executable, "-B", "-S", "-c", code, settings, handle],
            env={**CLEAN_ENV, "PYTHONPATH": f"{ROOT}/src:{ROOT}/lib"},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout).get(handle)

    def task_file(self, script: str, **config) -> str:
        task = {
            "platform": "linux",
            "rootfs_uri": f"raw://{self.rootfs}",
            "run": {"path": "sh", "args": ["-ec", script]},
            **config,
        }
        path = self.folder / f"task-{time.monotonic_ns()}.yml"
        path.write_text(json.dumps(task))
        return str(path)

    def set_pipeline(self, name: str, pipeline: dict) -> None:
        path = self.folder / "pipeline.yml"
        path.write_text(json.dumps(pipeline))
        done = self.fly("set-pipeline", "-n", "-p", name, "-c", str(path))
        assert done.returncode == 0, done.stderr

    def health(self) -> int:
        url = f"http://127.0.0.1:{self.ports['health']}/"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def newest(self, kind: str) -> dict:
        """What runc was asked last: a create's config.json, or an exec's process."""
        files = sorted(self.seen.glob(f"{kind}.*"), key=lambda path: path.stat().st_mtime_ns)
        return json.loads(files[-1].read_text())

    def close(self) -> None:
        for process in (self.web, self.worker):
            if process and process.poll() is None:
                process.kill()
                process.wait(PATIENCE)


def remove_containers(namespaces: int, concourse: Concourse) -> None:
    root = "/run/containerd/runc/concourse"
    script = (
        f'for id in $(ls {root} 2>/dev/null); do "$0" --root {root} delete --force "$id"; done'
    )
    argv = ["nsenter", f"--target={namespaces}", "--mount", "--pid", "--", "sh", "-c", script]
    runc = concourse.release / "bin" / "runc"
    subprocess.run([*argv, str(runc)], check=True, env=CLEAN_ENV, timeout=PATIENCE)
    for garden in Path("/sys/fs/cgroup").glob("**/garden"):
        with suppress(OSError):
            garden.rmdir()
