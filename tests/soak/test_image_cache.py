# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The second job with a large image does not wait for it, by Concourse's own registry-image.

It needs a real Concourse with that resource type, and a registry of the test's own. 12 GB in `make
soak`, else one. With GPUCI_WRITE=1 docs/reference/performance.md gets what came of it.
"""

import os
import statistics
import subprocess
import sys
import tarfile
import time
import typing

import pytest

from benchmarks import measure, page
from tests.fakes import registry
from tests.lab import concourse
from tests.lab.network import GATEWAY

SOAK = "GPUCI_SOAK" in os.environ
LAYERS, FILES = (12, 1000) if SOAK else (1, 1000)
TARBALL = os.environ.get("GPUCI_CONCOURSE_TARBALL", "")
SECONDS = 900
# A promise, of docs/explanation/image-cache.md: from a job's start to its end.
SECOND = 5.0
SOURCE = {"repository": f"{GATEWAY}:{registry.PORT}/{registry.NAME}", "tag": "1", "insecure": True}
RUN = {"path": "sh", "args": ["-c", "echo begun"]}


def has_registry_image():
    if not concourse.is_real() or not TARBALL:
        return False
    with tarfile.open(TARBALL) as archive:
        wanted = "concourse/resource-types/registry-image"
        return any(one.name.startswith(wanted) for one in archive)


# In words, so that it is asked when the test comes: a tarball takes seconds to be read.
pytestmark = pytest.mark.skipif(
    "not has_registry_image()",
    reason="the Concourse at hand has no registry-image: GPUCI_CONCOURSE_TARBALL",
)


@pytest.fixture
def large_image(site, tmp_path):
    """A registry in the lab's network that has it, for the worker alone."""
    program = [sys.executable, registry.__file__, str(tmp_path), str(LAYERS), str(FILES)]
    with subprocess.Popen(
        site.lab.park.network.inside(program), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield SOURCE
        finally:
            process.kill()


class Jobs:
    """Jobs with an image, each by its own pipeline or by none, and how long each took."""

    def __init__(self, site, source):
        self._fly, self._image = site.fly, {"type": "registry-image", "source": source}

    def _config(self, image):
        root = {"image_resource": self._image} if image else self._fly.root
        return {"platform": "linux", "params": {"GPU_COUNT": "0"}, "run": RUN, **root}

    def timed(self, *arguments):
        begun = time.monotonic()
        done = self._fly.run(*arguments, timeout=SECONDS)
        took = time.monotonic() - begun
        assert done.returncode == 0, done.stdout + done.stderr
        assert "begun" in done.stdout
        return took, done.stdout

    def one_off(self, *, image=True):
        path = self._fly.config_file(self._config(image))
        return self.timed("execute", "-c", str(path), "--tag=gpu")

    def of_pipeline(self, name, *, image=True):
        task = {"task": "use", "tags": ["gpu"], "config": self._config(image)}
        return self.timed(*self._fly.job(name, {"jobs": [{"name": name, "plan": [task]}]}))

    def fetch(self, name):
        """A pipeline as examples/prepull.yml, which fetches the image and uses it in no task."""
        tagged = {"name": "image", "tags": ["gpu"], **self._image}
        get = {"get": "image", "tags": ["gpu"]}
        pipeline = {"resources": [tagged], "jobs": [{"name": name, "plan": [get]}]}
        begun = time.monotonic()
        done = self._fly.run(*self._fly.job(name, pipeline), timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        return time.monotonic() - begun


def test_the_second_job_with_a_large_image_does_not_wait_for_it(site, large_image):
    jobs = Jobs(site, large_image)
    base, base_job = (
        statistics.median(run(image=False)[0] for _ in range(3))
        for run in (jobs.one_off, lambda image: jobs.of_pipeline("bare", image=image))
    )
    fetched = jobs.fetch("prepull")
    # Whoever comes: a one-off build, a job of another pipeline, and again.
    first, job, second = jobs.one_off(), jobs.of_pipeline("another"), jobs.one_off()
    site.machine().enter("/bin/systemctl", "restart", "concourse-worker")
    site.tags()
    third = jobs.one_off()
    assert all("found existing resource cache" in said for _, said in (first, job, second, third))
    rows = [
        Row("a pipeline fetches it, as examples/prepull.yml", fetched, base_job),
        Row("a one-off task with it, the first that uses it", first[0], base),
        Row("a task with it of another pipeline's job", job[0], base_job),
        Row("one more one-off task with it", second[0], base),
        Row("after a restart of the worker", third[0], base),
    ]
    report = told(rows)
    print("\n\n".join(report.blocks), report.ceilings)
    if "GPUCI_WRITE" in os.environ:
        page.renew([report], [f"Load of the machine: {page.load()}"])
    assert all(one.holds for one in report.ceilings), report


class Row(typing.NamedTuple):
    """Seconds of one job, and of its like without an image."""

    what: str
    took: float
    base: float


def told(rows):
    """The section of docs/reference/performance.md."""
    size = LAYERS * FILES * (1 << 20) / 1e9
    about = (
        f"An image of {size:.1f} GB in {LAYERS} layers with {LAYERS * FILES} files, from a "
        "registry on the same machine, by the real Concourse and its own registry-image. The "
        "baseline is the same task on a folder of the worker, without an image (median of "
        "three). Times are those of the whole `fly`, from its start to its end; with a pipeline's "
        "job web takes its time to begin it."
    )
    table = ["| | without an image, s | with it, s |", "|---|---|---|"]
    table += [f"| {one.what} | {one.base:.1f} | **{one.took:.1f}** |" for one in rows]
    waited = max(one.took - one.base for one in rows[1:])
    return measure.Report(
        title="A task with a large image",
        blocks=[about, "\n".join(table)],
        ceilings=[measure.Ceiling("what a later task waits for it, maximum in s", waited, SECOND)],
    )
