# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Debian's Prometheus and promtool, as scripts/setup unpacks them into .prometheus/."""

import contextlib
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: {rules}
scrape_configs:
  - job_name: gpu-ci
    static_configs: [{{targets: {targets}}}]
"""


def program(name):
    """Path of `prometheus` or `promtool`; skips the test where there is none."""
    unpacked = ROOT / ".prometheus/usr/bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name}: scripts/setup test could not download it")
    return found


def free_port():
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextlib.contextmanager
def running(folder, *scraped, rules=()):
    """A Prometheus that scrapes these ports; its own address.

    Another program may take the port that it was to have: then it has another one.
    """
    config, said = folder / "prometheus.yaml", folder / "said"
    targets = json.dumps([f"127.0.0.1:{port}" for port in scraped])
    config.write_text(
        CONFIG.format(targets=targets, rules=json.dumps([str(one) for one in rules]))
    )
    for _ in range(5):
        address = f"127.0.0.1:{free_port()}"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [
                    program("prometheus"), f"--config.file={config}",
                    f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
            )  # fmt: skip
        try:
            if _is_ready(process, address):
                yield address
                return
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
    pytest.fail(f"Prometheus does not start: {said.read_text()}")


def _is_ready(process, address):
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            if fetched(f"http://{address}/-/ready"):
                return True
        time.sleep(0.1)
    return False


def fetched(url):
    # No proxy of the machine's stands between.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return answer.read()


def answer(address, query, at):
    """What Prometheus has to say to a query at that time."""
    arguments = urllib.parse.urlencode({"query": query, "time": at})
    try:
        found = json.loads(fetched(f"http://{address}/api/v1/query?{arguments}"))
    except urllib.error.HTTPError as error:
        pytest.fail(f"{query}: {error.read().decode()}")
    return found["data"]["result"]
