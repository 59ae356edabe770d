# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A machine with two simulated GPUs and gpu-run, for alice and bob; mallory is in no group."""

import contextlib
import json
import shlex

from tests.functional import lease_site, selftest_machine

GROUP = "gpu-users"
STORE = "/run/gpu-ci/leases/leases.json"
UNITS = "gpu-ci-run@*.service"
# Whether root's part of gpu-run serves anybody.
SERVES = "pgrep -x gpu-run-serves"
SLICE = "/gpurun.slice/gpu-run-"
# As a hook does it, from a charm that lies in /srv/charm.
DO = """
import pathlib
from gpu_agent import install as app
app.HOME, app.CURRENT = pathlib.Path('/srv'), {current!r}
from gpu_agent.gpu.vendors import detect
from gpu_agent.gpu_run import service
from gpu_agent import paths
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
def policy(**values):
    given = dict(nvidia_runtime='/usr/bin/false', wait_timeout=60) | values
    paths.POLICY.parent.mkdir(exist_ok=True)
    text = install.policy_text(GpuPlan(detect.detect().gpus, **given))
    paths.POLICY.write_text(text)
print({code})
"""
# Tells from inside which GPUs' nodes its control group lets it open.
SEES = "sh /srv/sees"
_SEES = """for node in /dev/nvidia[0-9] /dev/nvidiactl /dev/null; do
if err=$(LC_ALL=C dd if=$node of=/dev/null count=0 2>&1); then echo $node; else case $err in
*'not permitted'*) ;; *) echo $node;; esac; fi; done"""


class Box:
    """The machine, and what its people do."""

    def __init__(self, host):
        self.host, self.machine, self.sh, self.fakegpu = host, host.machine, host.sh, host.fakegpu
        self.current = "charm"

    def do(self, code):
        return self.host.run(DO.format(current=self.current, code=code)).strip()

    def command(self, user, *words):
        return [
            *("/usr/bin/setpriv", "--reuid", user, "--regid", user, "--init-groups", "--"),
            *("/usr/bin/env", "-C", "/home/" + user),
            *("PATH=/usr/local/bin:/usr/bin:/bin", *words),
        ]

    def run(self, *words, user="alice", check=False):
        """Call gpu-run to its end."""
        command = self.command(user, "gpu-run", *words)
        return self.machine.run(command, timeout=90, check=check)

    def begin(self, name, *words, user="alice"):
        """Call gpu-run beside the test; what it says goes to /srv/said/NAME."""
        command = shlex.join(self.command(user, "gpu-run", *words))
        self.sh(
            f"mkdir -p -m 1777 /srv/said; systemd-run --quiet --unit=test-{name} --collect "
            f"-p KillMode=process -p StandardError=truncate:/srv/said/{name} "
            f"-p StandardOutput=truncate:/srv/said/{name}.out {command}"
        )
        return name

    def said(self, name):
        return self.sh(f"cat /srv/said/{name} 2>/dev/null", check=False).stdout

    def pid(self, name):
        return int(self.sh(f"systemctl show -P MainPID test-{name}").stdout)

    def is_running(self, name):
        return self.sh(f"systemctl is-active -q test-{name}", check=False).returncode == 0

    def leases(self):
        text = self.sh(f"cat {STORE} 2>/dev/null || echo '{{}}'").stdout
        return {"holders": {}, "waiters": [], **json.loads(text)}

    def holder(self, words):
        """The unit of whoever has a lease and is called so; empty if nobody has by now."""
        held = self.leases()["holders"]
        return next((name for name, one in held.items() if words in one["who"]), "")

    def wait(self, script, seconds=60):
        lease_site.until(lambda: self.sh(script, check=False).returncode == 0, seconds)

    def wait_said(self, name, words):
        lease_site.until(lambda: words in self.said(name), 60)

    def wait_runs(self, name, words):
        """Wait until the command of a call has its GPUs; its unit."""
        lease_site.until(lambda: self.holder(words) or not self.is_running(name), 60)
        unit = self.holder(words)
        assert unit, self.said(name)
        self.wait(f"systemctl is-active -q {unit}")
        lease_site.until(lambda: self.leases()["holders"][unit]["execs"], 60)
        return unit

    def end_all(self):
        """End what people run."""
        self.sh(f"systemctl stop 'test-*' '{UNITS}' 'gpu-run-*.scope' 2>/dev/null; true")

    def settle(self):
        """End all that runs, as a test leaves it."""
        self.end_all()
        # The leases of what is over, which the next one would find so.
        self.sh("rm -rf /srv/said /run/gpu-ci/leases; systemctl reset-failed; true")


@contextlib.contextmanager
def started(name, more=()):
    """A Box with gpu-run."""
    with selftest_machine.started(name, more) as host:
        box = Box(host)
        host.sh(
            f"groupadd --system {GROUP}; touch /srv/charm/stamp; "
            f"for one in alice bob; do useradd -m -G {GROUP} $one; done; useradd -m mallory"
        )
        host.machine.write("/srv/sees", _SEES)
        box.do("policy()")
        box.do(f"service.install({GROUP!r})")
        yield box
