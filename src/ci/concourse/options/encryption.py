# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which keys Concourse gets for what its database holds encrypted. Pure.

Concourse checks no key: with another one it starts, and can read nothing of what is encrypted. So
the key that web has had is given as the old one, whatever the operator gives, and Concourse
encrypts anew what it finds under it, or decrypts it where there is no new key (concourse 95872ce1a
atc/db/migration/migration.go:334-350). What is done already it leaves alone.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Keys:
    """The key, and the one before it; each empty where there is none."""

    new: str = dataclasses.field(default="", repr=False)
    old: str = dataclasses.field(default="", repr=False)


def keys(given: Keys, had: Keys) -> Keys:
    """The keys to start web with.

    Args:
        given: what the operator says.
        had: what the web on this machine was last started with.
    """
    if given.old:
        return given
    if given.new == had.new:
        return had
    return Keys(given.new, had.new or (had.old if had.old != given.new else ""))
