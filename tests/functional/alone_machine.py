# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A booted machine with two simulated GPUs; in /srv/tree lies the agent's tree, without src."""

import contextlib
import json
import pathlib

from tests import fakes
from tests.functional import selftest_machine

ROOT = pathlib.Path(__file__).parents[2]
AGENT = "/usr/local/sbin/gpu-ci-agent"
SETTINGS = "/etc/gpu-ci/agent.json"
# What an operator unpacks, without src. The packages are those of the packed charm.
_UNPACK = """
set -e
mkdir -p /srv/tree/scripts
cp -r /srv/charm/lib /srv/charm/venv /srv/tree
cp /srv/root/scripts/agent /srv/tree/scripts
cp /srv/root/requirements-agent.txt /srv/tree
"""


class Box(selftest_machine.Host):
    """The machine, as its operator and the people on it use it."""

    def tree(self, *words, check=True):
        """Run the command from the unpacked tree."""
        return self.sh(f"/srv/tree/scripts/agent {' '.join(words)}", check)

    def agent(self, *words, check=True):
        """Run the installed command."""
        return self.sh(f"{AGENT} {' '.join(words)}", check)

    def configure(self, **values):
        found = json.loads(self.machine.read(SETTINGS))
        found |= {name.replace("_", "-"): value for name, value in values.items()}
        self.machine.write(SETTINGS, json.dumps(found))

    def begin(self, name, script, holds=False):
        """Run a command of alice's by gpu-run; what it prints goes to /srv/NAME.

        Where it holds, it goes on until `end`.
        """
        script += f"\nuntil [ -e /srv/{name}.go ]; do sleep 0.2; done" if holds else ""
        self.machine.write(f"/srv/{name}.sh", script)
        self.sh(
            f"systemd-run --quiet --collect --unit=alice-{name} -p User=alice -p KillMode=process "
            f"-p StandardOutput=truncate:/srv/{name} -p StandardError=truncate:/srv/{name}.err "
            f"/usr/local/bin/gpu-run -- sh /srv/{name}.sh"
        )

    def end(self, name):
        self.sh(f"touch /srv/{name}.go")
        self.wait(f"! systemctl -q is-active alice-{name}")

    def version(self):
        return self.sh("basename $(readlink -f /opt/gpu-ci/app/current)").stdout.strip()

    def renew(self, word):
        """Put another version into the tree."""
        self.machine.write("/srv/tree/lib/gpu_standalone/word.py", f"WORD = {word!r}\n")

    def listed(self):
        """All that the agent may leave on the machine, with mode and size."""
        found = "find /etc /opt /run/gpu* /usr/local /var/lib /var/log -xdev"
        # What the machine itself changes meanwhile.
        others = (
            "/journal/|/systemd/(catalog|timers|random)|/var/lib/systemd|mtab|machine-id|ld.so|"
            # The lock of the command, and who has logged in.
            "/run/gpu-ci-agent[ /]|[bw]tmp"
        )
        listing = f"{found} -printf '%p %m %s\n' 2>/dev/null | grep -vE '{others}' | sort"
        return self.sh(listing).stdout.splitlines()

    def wait(self, script):
        self.sh(
            f"for i in $(seq 300); do {script} && exit; sleep 0.2; done; cat /srv/*.err; exit 1"
        )


@contextlib.contextmanager
def started(name):
    with selftest_machine.started(name, {"/srv/root": ROOT}) as host:
        box = Box(host.machine, host.libraries)
        runtime = pathlib.Path(fakes.STANDIN_RUNTIME).name
        box.sh(_UNPACK + f"install -m 755 /srv/fakes/{runtime} /usr/bin/nvidia-container-runtime")
        box.sh("groupadd --system gpu-users; useradd -m -G gpu-users alice; chmod 777 /srv")
        yield box
