# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The machine of runners_machine.py with podman and Docker of Debian, which know runtime gpu-ci.

Without a network: the image BOX is made here, of busybox.
"""

import contextlib
import pathlib
import tempfile

from tests import fakes
from tests.functional import engine_machine, runners_machine
from tests.soak import line_machine

BOX = "lab.test/box"
_RUNTIME = pathlib.Path(fakes.STANDIN_RUNTIME).name
# As both packages install it. Docker takes --gpus only where it finds the hook.
INSTALL = f"""
set -e
for folder in usr etc lib; do cp -rsn /srv/engines/$folder/. /$folder/; done
cp --remove-destination /srv/engines/lib/systemd/system/docker.* /lib/systemd/system/
ldconfig
groupadd -f docker
mkdir -p /etc/docker /var/lib/docker /var/lib/containers
# Images lie on what an overlay can lie on.
for name in docker containers; do mount -t tmpfs -o mode=755 tmpfs /var/lib/$name; done
printf '%s' '{{"bridge": "none", "iptables": false}}' >/etc/docker/daemon.json
printf '%s' '{line_machine.CONTAINERS_CONF}' >/etc/containers/containers.conf
ln -s /bin/false /usr/bin/nvidia-container-runtime-hook
install -m 755 /srv/fakes/{_RUNTIME} /usr/bin/nvidia-container-runtime
systemctl daemon-reload
systemctl start docker
for engine in docker podman; do $engine load -i /srv/images/box.tar; done
"""
# As a hook does it.
REGISTER = """
from gpu_agent.engines import registry
from gpu_agent.engines.engine import EnginesPlan
from gpu_agent.gpu.vendors import detect
from gpu_agent.runtime import install
from gpu_agent.runtime.settings import GpuPlan
runtime = "/usr/bin/nvidia-container-runtime"
install.apply(GpuPlan(detect.detect().gpus, nvidia_runtime=runtime, wait_timeout=60))
registry.ensure(EnginesPlan(("docker", "podman"), default=("docker", "podman")))
"""


@contextlib.contextmanager
def started(name, **settings):
    """A Site whose jobs have Docker; `settings` are the daemon's."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpuci-test-") as images:
        path = pathlib.Path(images)
        path.chmod(0o755)
        engine_machine.write_image(path / "box.tar", f"{BOX}:latest", ())
        more = {"/srv/engines": engine_machine.ENGINES.resolve(), "/srv/images": path}
        with runners_machine.started(name, more) as site:
            site.sh(INSTALL)
            site.box.host.run(REGISTER)
            site.configure(engine="docker", **settings)
            yield site
