# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Concourse itself fixes: ports, checksums, timeouts, what works together. Pure."""

import typing

from gpu_agent.model import versions

TSA_PORT: typing.Final = 2222
# Of the worker's two servers, to which web's connections come through the tunnel.
GARDEN_PORT, BAGGAGECLAIM_PORT = 7777, 7788
# All that the worker's own process alone connects to: the two, and what debugs each (8.2.5
# worker/workercmd/worker.go:33-36, worker/baggageclaim/baggageclaimcmd/command_linux.go:25-29).
WORKER_PORTS: typing.Final = (7776, GARDEN_PORT, 7787, BAGGAGECLAIM_PORT)
# Where the worker says whether it is well (worker/workercmd/worker.go:38-40).
HEALTH_PORT: typing.Final = 8888

# Seconds after which a web of this charm gives up a call to a worker; Concourse's own are 300. A
# task that waits for its GPU is such a call.
WEB_REQUEST_TIMEOUT: typing.Final = 2100

# Where releases are, each in a folder `v<version>`.
RELEASES: typing.Final = "https://github.com/concourse/concourse/releases/download"

# sha256 of concourse-<version>-linux-amd64.tgz, from config/blobs.yml of concourse-bosh-release at
# the tag of each version. Upstream publishes SHA-1 files only, and nothing for arm64.
PINNED_SHA256: typing.Final = {
    "8.0.0": "e772bc43c62ebf546c46d1f0cd52a69d57a44af9f336e1e3a7c43869ceccb68a",
    "8.0.1": "52fee46a10f638581e022b32052b9d28e116a04f113f607a5eae20b0e34132b8",
    "8.0.2": "f4ad1ff8a60af08e52c81cab61d7a612dedd84422245b2d4607d144bf85b7144",
    "8.1.0": "32ac985baea09cecafd4eb026135376237683d41b69327a2f3f86a732072f606",
    "8.1.1": "6497d7861d595ca4988d9807b389b573df01dc430992b69b36532d18cfe3a0bf",
    "8.2.0": "d8c8c2e18e7691eaf7018561a200493db8febcca3296db7b01dba190db11e400",
    "8.2.1": "f38bdc46ca67c6741d690cc15501541605d406ffcd9dac926eee04867e5da145",
    "8.2.2": "6807298891dc0ad0843099ea367aef9cbf6e1c268c7675f7ca635911250483d6",
    "8.2.3": "6e1e911d6cb2bd5f5b04e480b1ad1d2e81ea9d0aab59ee33ba577b26afa5fd40",
    "8.2.4": "ed2bb4ddf0e750bbf3c420e316236a9b6a9539c7d1d97ecabc0163401314a537",
    "8.2.5": "8d6f0cc8cbcf49b6a6b4decb8320bbdf5c957a153883d57d01ea0dc664d685ac",
    "8.3.0": "320b0cde214893378213d1f2f38eb515c55d0d8128185b076fd7ce555bf09e2c",
}

# The release that a unit runs if neither its options nor its web say otherwise.
RELEASE: typing.Final = "8.3.0"
# The oldest release whose settings this charm writes.
OLDEST: typing.Final = "8.0.0"

# What Concourse itself listens on (8.2.5 tsa/tsacmd/command.go:33-36, atc/atccmd/command.go:158,
# worker/workercmd/worker.go:33-39, worker/baggageclaim/baggageclaimcmd/command_linux.go:26-29).
TAKEN_PORTS: typing.Final = (
    2221,
    TSA_PORT,
    *WORKER_PORTS,
    8079,
    HEALTH_PORT,
)

# Seconds. Concourse gives up a call to a worker after 300, by web and by the worker's own clock
# (8.2.5 CONCOURSE_GARDEN_REQUEST_TIMEOUT, CONCOURSE_CONTAINERD_REQUEST_TIMEOUT), and the sentence
# that says why a task got no GPU would be lost.
REQUEST_TIMEOUT: typing.Final = 300
LONGEST_WAIT: typing.Final = 280
# What is left for the rest of the call where its end is known.
REST_OF_CALL: typing.Final = 60


def tarball(version: str, architecture: str) -> str:
    """Path of a release below RELEASES, or below a mirror."""
    return f"v{version}/concourse-{version}-linux-{architecture}.tgz"


def works_with(worker: str, web: str) -> bool:
    """Whether a web of one Concourse release schedules on a worker of another.

    The worker's API version must have the same major and must not be older (concourse 8.2.5
    atc/worker/pool.go:395-425): 2.4 up to 7.9, 2.5 up to 8.2, 3.0 from 8.3 on.
    """

    def api(version: str) -> tuple[int, int]:
        if versions.numbers(version) >= (8, 3):
            return 3, 0
        return (2, 5) if versions.numbers(version) >= (7, 10) else (2, 4)

    return api(worker)[0] == api(web)[0] and api(worker) >= api(web)


def knows_key_forms(version: str) -> bool:
    """Whether this Concourse takes encryption keys in hex and base64, too.

    It does from 8.2.0 on (8.2.0 and 8.1.0 atc/atccmd/command.go). One that does not would take no
    notice of such a key, and encrypt nothing.
    """
    return versions.numbers(version) >= (8, 2)


def limits_each_worker(version: str) -> bool:
    """Whether this Concourse knows a limit of tasks for each worker, as 8.3 and later do.

    Those before have one for all workers, which those without GPUs would be held to as well.
    """
    return versions.numbers(version) >= (8, 3)
