# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""runc's command line as the back end reads it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpu_runtime.runc_arguments import parse

GLOBAL = ["--root", "/run/containerd/runc/concourse", "--log", "/b/log.json"]
GLOBAL += ["--log-format", "json"]


def test_create_as_containerd_calls_it():
    call = parse(
        [
            *GLOBAL,
            "create",
            "--bundle",
            "/b",
            "--pid-file",
            "/b/init.pid",
            "--no-new-keyring",
            "ID",
        ]
    )
    assert (call.command, call.container, call.words) == ("create", "ID", ["ID"])
    assert call.options == {
        "root": "/run/containerd/runc/concourse",
        "log": "/b/log.json",
        "log-format": "json",
        "bundle": "/b",
        "pid-file": "/b/init.pid",
    }


def test_exec_as_containerd_calls_it():
    call = parse(
        [*GLOBAL, "exec", "--process", "/tmp/runc-process1", "--console-socket", "/tmp/pty/s"]
        + ["--detach", "--pid-file", "/b/task.pid", "ID"]
    )
    assert (call.command, call.container) == ("exec", "ID")
    assert call.options["process"] == "/tmp/runc-process1"


@pytest.mark.parametrize(
    "words",
    [
        ["create", "--bundle", "/b", "ID"],
        ["create", "--bundle=/b", "ID"],
        ["create", "-b", "/b", "ID"],
        ["create", "-bundle", "/b", "ID"],
        ["create", "-b=/b", "ID"],
        ["create", "ID", "--bundle", "/b"],
        ["create", "--bundle", "/wrong", "--bundle", "/b", "ID"],
        ["create", "--pid-file", "--bundle", "--bundle", "/b", "ID"],
        ["create", "--bundle", "/b", "--", "ID"],
        ["--", "create", "--bundle", "/b", "ID"],
        ["--debug", "--", "create", "ID", "-b", "/b"],
        ["create", "ID", "--no-pivot", "--bundle", "/b"],
    ],
    ids=" ".join,
)
def test_forms_of_a_flag(words):
    call = parse(words)
    assert (call.command, call.options["bundle"], call.container) == ("create", "/b", "ID")


@pytest.mark.parametrize("command", ["run", "restore"])
@pytest.mark.parametrize(
    "words",
    [
        *(["--bundle", "/b", "ID"], ["-b", "/b", "ID"], ["-b=/b", "--detach", "ID"]),
        *(["--console-socket", "create", "-b", "/b", "ID"], ["--pid-file", "p", "-b=/b", "ID"]),
        ["ID", "--bundle", "/b"],
    ],
    ids=" ".join,
)
def test_starts_in_one_go(command, words):
    call = parse([*GLOBAL, command, *words])
    assert (call.command, call.options["bundle"], call.container) == (command, "/b", "ID")


def test_restores_own_flags():
    words = ["restore", "--image-path", "/i", "--work-path", "/w", "--lsm-profile", "x", "ID"]
    assert parse([*words, "--manage-cgroups-mode", "soft"]).words == ["ID"]


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "-p", "/f", "-e", "A=b", "-u", "0", "--cap", "x", "ID"],
        ["exec", "--process=/f", "-g", "7", "--pidfd-socket", "s", "--cgroup", "c", "ID", "x"],
        ["exec", "-process", "/f", "-d", "-t", "--ignore-paused", "--", "ID", "--process", "/g"],
    ],
    ids=" ".join,
)
def test_forms_of_an_exec(words):
    call = parse(words)
    assert (call.command, call.options["process"], call.container) == ("exec", "/f", "ID")


def test_a_value_is_no_subcommand():
    assert parse(["--root", "create", "start", "ID"]).command == "start"
    assert parse(["--log=create", "delete", "create"]).command == "delete"


def test_the_command_of_an_exec_holds_no_flags_of_runc():
    call = parse(["exec", "-t", "ID", "sh", "--process", "/x"])
    assert call.words == ["ID", "sh", "--process", "/x"]
    assert "process" not in call.options


@pytest.mark.parametrize("name", ["", "a/b", "../x", "..", "."])
def test_what_no_container_is_called(name):
    assert parse(["create", name]).container == ""


@pytest.mark.parametrize("name", ["-", "-x", "--bundle", "a b", "é", "create"])
def test_what_a_container_may_be_called(name):
    assert parse(["create", "--", name]).container == name


def test_two_dashes_end_flags_once_each():
    assert parse(["--", "--", "create"]).command == "--"
    assert parse(["--", "-x", "ID"]).command == "-x"
    assert parse(["-", "create", "ID"]).command == "-"
    call = parse(["exec", "--", "ID", "--", "-p"])
    assert (call.words, call.options) == (["ID", "--", "-p"], {})


def test_runcs_own_flags_come_before_the_command():
    call = parse(["create", "--root", "ID", "--log", "x"])
    assert (call.options, call.words) == ({}, ["ID", "x"])


@settings(deadline=None, database=None)
@given(some.lists(some.sampled_from(["create", "exec", "--bundle", "-b=", "--", "-", "", "x"])))
def test_any_words_can_be_read(words):
    call = parse(words)
    assert call.command in {"", *words}
    assert set(call.words) <= set(words)
