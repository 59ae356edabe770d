# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Chooses the keys with which Concourse encrypts secrets in its database. Pure.

Concourse does not check a key: with a wrong key it starts and cannot read what is encrypted. So
the charm always passes the key that web had before as the old key. Concourse then re-encrypts what
is encrypted with the old key, or decrypts it if a new key is missing (concourse 95872ce1a
atc/db/migration/migration.go:334-350). It leaves alone what is already done.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Keys:
    """The key and the previous key; each empty if there is none."""

    new: str = dataclasses.field(default="", repr=False)
    old: str = dataclasses.field(default="", repr=False)


def keys(given: Keys, had: Keys) -> Keys:
    """Return the keys to start web with.

    Args:
        given: the operator's keys.
        had: the keys that the web on this machine was last started with.
    """
    if given.old:
        return given
    if given.new == had.new:
        return had
    return Keys(given.new, had.new or (had.old if had.old != given.new else ""))
