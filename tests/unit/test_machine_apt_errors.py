# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What apt and dpkg of several releases complain of becomes one sentence of the right kind."""

import pathlib

import pytest

from machine import apt_errors

# Complaints as these versions word them, whether they pass, whether a signature was refused, and a
# part of what the operator reads.
COMPLAINTS = [
    (
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (apt-get)",
        (True, False, "process 812 (apt-get) is working"),
    ),
    (
        "dpkg: error: dpkg frontend lock was locked by another process with pid 77",
        (True, False, "'ps -fp 77'"),
    ),
    (
        (
            "W: GPG error: https://n.io/deb/amd64  InRelease: The following signatures "
            "couldn't be verified because the public key is not available: "
            "NO_PUBKEY DDCAE044F796ECB0"
        ),
        (False, True, "NO_PUBKEY DDCAE044F796ECB0"),
    ),
    (
        (
            "W: An error occurred during the signature verification. The repository is not "
            "updated and the previous index files will be used. GPG error: https://n.io  "
            "InRelease: The following signatures were invalid: EXPKEYSIG DDCAE044F796ECB0 NVIDIA"
        ),
        (False, True, "EXPKEYSIG"),
    ),
    # apt 3.0, with sqv.
    (
        (
            "W: OpenPGP signature verification failed: https://n.io InRelease: Sub-process "
            "/usr/bin/sqv returned an error code (1), error message is: Missing key C95B, which "
            "is needed to verify signature."
        ),
        (False, True, "Missing key C95B"),
    ),
    (
        "E: Failed to fetch https://n.io/Packages  Hash Sum mismatch\n   Hashes of expected file:",
        (False, False, "does not match its signature"),
    ),
    (
        "E: Failed to fetch https://n.io/a.deb  File has unexpected size (3 != 4). Mirror sync?",
        (False, False, "does not match its signature"),
    ),
    (
        "E: Failed to fetch https://n.io/InRelease  Could not resolve 'n.io'",
        (True, False, "can't be reached"),
    ),
    (
        "E: Failed to fetch https://n.io/a.deb  404  Not Found [IP: 10.0.0.1 443]",
        (False, False, "address does not exist"),
    ),
    (
        "E: You don't have enough free space in /var/cache/apt/archives/.",
        (False, False, "the disk is full"),
    ),
    (
        (
            "dpkg: error processing archive /var/cache/apt/archives/a_1.deb (--unpack):\n cannot "
            "copy extracted data for './a' to '/a.dpkg-new': failed to write "
            "(No space left on device)"
        ),
        (False, False, "the disk is full"),
    ),
    (
        "E: Conflicting values set for option Signed-By regarding source https://n.io/ /: a != b",
        (False, False, "another source of the same repository"),
    ),
    # Which apt refuses to mend by --fix-broken.
    (
        "E: dpkg was interrupted, you must manually run 'sudo dpkg --configure -a' to correct it.",
        (False, False, "dpkg was interrupted: run 'sudo dpkg --configure -a'"),
    ),
    (
        "E: Could not get lock /var/lib/dpkg/lock - open (11: Resource temporarily unavailable)",
        (True, False, "another is working"),
    ),
    (
        "E: Cannot fork - fork (12: Cannot allocate memory)",
        (True, False, "short of memory or processes (Cannot fork"),
    ),
    ("E: Something new\nE: And more", (False, False, "apt said 'Something new / And more'")),
    ("", (False, False, "apt said")),
]


@pytest.mark.parametrize(
    ("stderr", "expected"), COMPLAINTS, ids=[said[:40] for said, _ in COMPLAINTS]
)
def test_complaint(stderr, expected):
    error = apt_errors.explain("install a", "", stderr)
    assert (error.passes, error.signature) == expected[:2]
    assert expected[2] in str(error)
    assert str(error).startswith("can't install a: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("stdout", "stderr"),
    [
        ("Setting up a (1) ...\nno module\n", ""),
        ("Setting up b (1) ...\nSetting up a (1) ...\n", "no module\n"),
    ],
)
def test_package_that_fails_says_why_on_either_stream(stdout, stderr):
    failed = (
        "dpkg: error processing package a (--configure):\n installed a package post-installation "
        "script subprocess returned error exit status 3\nErrors were encountered while "
        "processing:\n a\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    error = apt_errors.explain("install a", stdout, stderr + failed)
    assert "package a failed" in str(error)
    assert "it said 'no module'" in str(error)
    assert not error.passes


def test_what_is_said_is_short():
    assert len(str(apt_errors.explain("install a", "", f"E: {'x' * 9000}"))) < 500


def test_a_full_disk_is_named_where_apt_does_not():
    """As apt 2.6 does, which then could not write what came as a dependency alone."""
    said = "E: Write error - write (28: No space left on device)\n"
    error = apt_errors.no_room("install a", said, lambda folder: str(folder) != "/var/lib/apt")
    assert str(error).startswith("can't install a: the disk of /var/lib/apt is full (E: Write err")


def test_room_is_what_is_free_for_the_charm(tmp_path):
    assert apt_errors.has_room(tmp_path)
    assert not apt_errors.has_room(pathlib.Path("/proc"))
