# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The kinds of status lines about runners: code, level and text of each. Pure."""

import typing

from plan.messages import Kind, Kinds, Level

KINDS: typing.Final = Kinds(
    Kind(
        "no-runner-service",
        Level.BLOCKED,
        "No {lacks}, so no runner can register",
        "{remedy}",
    ),
    Kind(
        "no-runner-program",
        Level.BLOCKED,
        "No program for runners",
        "juju attach-resource {application} runner=<file of {service}'s runner for this machine>, "
        "or juju config {application} runner-download=<URL>@sha256:<its checksum>",
    ),
    Kind(
        "runner-containers-without-engine",
        Level.BLOCKED,
        "runner-containers=trusted, and no engine of container-engines has =default",
        "juju config {application} container-engines=docker=default, or runner-containers=none",
    ),
    Kind(
        "runner-containers-trusted",
        Level.ACTIVE,
        "jobs have containers, and so can become root",
    ),
    Kind(
        "self-test-without-runc",
        Level.ACTIVE,
        "no self-test, as this machine has no runc",
        "sudo apt-get install runc",
    ),
    Kind(
        "runner-token-refused",
        Level.BLOCKED,
        "{url} does not accept what runner-secret has",
        "juju update-secret <secret> {fields}",
    ),
    Kind(
        "runner-token-too-weak",
        Level.BLOCKED,
        "What runner-secret has may not manage runners of {scope}",
        "let it, or juju update-secret <secret> {fields}",
    ),
    Kind(
        "runner-scope-unknown",
        Level.BLOCKED,
        "{url} has no {scope}, or what runner-secret has does not see it",
        "juju config {application} runner-scope=<OWNER/REPOSITORY or ORGANISATION>, or correct "
        "runner-url",
    ),
    Kind(
        "runner-service-strange",
        Level.BLOCKED,
        "{url} does not answer as {service}: {text}",
        "juju config {application} runner-url=<URL of {service}>",
    ),
    Kind(
        "runner-group-of-repository",
        Level.BLOCKED,
        "runner-group is set, and runner-scope is a repository, which has no runner groups",
        "juju config {application} runner-group=, or set runner-scope to the organisation",
    ),
    Kind(
        "runner-clock-wrong",
        Level.BLOCKED,
        "{text}",
        "sudo timedatectl set-ntp true",
    ),
    Kind(
        "runner-service-away",
        Level.WAITING,
        "{text}; running jobs go on, and it is asked again",
        "see journalctl -u gpu-ci-runners; check the network and the model's proxies",
    ),
    Kind(
        "runners-down",
        Level.WAITING,
        "The service that keeps the runners does not run",
        "see journalctl -u gpu-ci-runners",
    ),
    Kind(
        "runner-cannot-begin",
        Level.WAITING,
        "{text}",
        "see journalctl -u gpu-ci-runners",
    ),
    Kind(
        "runner-program-old",
        Level.ACTIVE,
        "the runner's program is {days} days old; GitHub gives no jobs to one that misses a "
        "release for 30 days",
        "{remedy}",
    ),
    Kind(
        "runner-program-too-old",
        Level.ACTIVE,
        "the runner's program is {days} days old, so GitHub may give it no jobs any more",
        "{remedy}",
    ),
)

text = KINDS.text
line = KINDS.line
