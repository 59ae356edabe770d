# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with the rooms of the charm in it, called as the charm does, and plans for them."""

from ci.concourse import rsa_keys as keys
from tests import once
from tests.functional.ci_driver import DIED
from tests.functional.concourse_machine import PYTHONPATH, TARBALL
from tests.functional.forked_calls import Calls

# Whatever a shell, systemd or a parser of settings might take for its own.
ODD = "p w'\"$x#\\%;=${HOME}`id`%h ü"
TAGS = (
    "gpu",
    "gpu-devices=0,1",
    "a b",
    "50%h",
    "$HOME",
    "${PATH}",
    "it's",
    'q"',
    "a\\b",
    ";",
    "ü",
)
HOST_PEM, SIGNING_PEM = once.rsa_key(1), once.rsa_key(2)
HOST_KEY = keys.public_key_line(HOST_PEM)
DATABASE = {
    "type": "database", "host": "127.0.0.1", "port": 5432, "name": "concourse",
    "user": "concourse", "password": ODD,
}  # fmt: skip


class Host:
    """A machine and the rooms of the charm in it."""

    def __init__(self, machine):
        self.machine = machine
        argv = ("-W", "error", "/srv/repo/tests/functional/ci_driver.py")
        self._calls = Calls(machine, PYTHONPATH, *argv)

    def close(self):
        self._calls.close()

    def sh(self, script, check=True):
        return self.machine.enter("/bin/sh", "-c", script, check=check, timeout=180).stdout

    def call(self, name, *arguments, say=True, die_at=-1, **more):
        asked = {"call": name, "arguments": arguments, "say": say, "die_at": die_at, **more}
        return self._calls.ask(asked, DIED if die_at >= 0 else 0)

    def release(self):
        plan = {"type": "release", "version": "", "architecture": "amd64", "sha256": ""}
        return self.call("ci.concourse.release.ensure", {**plan, "tarball": TARBALL})

    def web_plan(self, *worker_keys, **changes):
        return {**self._web_plan(), "worker_keys": [self.key(), *worker_keys], **changes}

    def _web_plan(self):
        secrets = {"type": "secrets", "admin_password": "admin-password",
                   "tsa_host_key": HOST_PEM, "session_signing_key": SIGNING_PEM}  # fmt: skip
        return {
            "type": "web", "address": "127.0.0.1", "port": 8080, "database": DATABASE,
            "external_url": "http://127.0.0.1:8080", "secrets": secrets, "worker_keys": [],
        }  # fmt: skip

    def worker_plan(self, **changes):
        return {
            "type": "worker", "name": "worker-0", "tsa_hosts": ["127.0.0.1:2222"],
            "tsa_public_keys": [HOST_KEY], "private_key": "", "tags": list(TAGS),
            "settings": {"type": "worker settings", "dns_servers": ["127.0.0.1"]},
            "wrapped": False, **changes,
        }  # fmt: skip

    def web(self, *worker_keys, die_at=-1):
        return self.call(
            "tests.functional.ci_driver.apply_web", self.web_plan(*worker_keys), die_at=die_at
        )

    def worker(self, **changes):
        return self.call("tests.functional.ci_driver.apply_worker", self.worker_plan(**changes))

    def both(self):
        """Web and worker as they are in most tests; whether each is well."""
        plans = self._web_plan(), self.worker_plan()
        return self.call("tests.functional.ci_driver.both", *plans, say=False)["result"]

    def key(self):
        return self.call("tests.functional.ci_driver.worker_key", say=False)["result"]

    def healthy(self):
        names = ("ci.concourse.web.web.healthy", "ci.concourse.worker.worker.healthy")
        return [self.call(name, say=False)["result"] for name in names]

    def main_pid(self, unit):
        return int(self.sh(f"systemctl show -P MainPID {unit}"))

    def environment(self, unit):
        raw = self.machine.read(f"/proc/{self.main_pid(unit)}/environ")
        return dict(item.split("=", 1) for item in raw.split("\0") if item)

    def state(self):
        """All that the rooms keep, but not what Concourse itself writes."""
        return self.sh(
            "find /opt/concourse -printf '%p %m %u %l %s %T@\\n' | sort; "
            "find /etc/concourse /etc/systemd/system /var/lib/gpu-ci -printf '%p %m %u %l\\n' "
            "-type f -fprint0 /run/state | sort; sort -z /run/state | xargs -0 sha256sum; "
            "systemctl is-active concourse-web concourse-worker"
        )

    def fly(self, arguments):
        """What fly says, after a login."""
        login = "login -c http://127.0.0.1:8080 -u admin -p admin-password"
        fly = "HOME=/root /srv/fly -t lab"
        return self.sh(f"{fly} {login} >/dev/null && {fly} {arguments}")

    def known(self, name):
        """What web says of a worker that is running; None if it knows no such worker."""
        return self.call("tests.functional.ci_driver.known", name, say=False)["result"]
