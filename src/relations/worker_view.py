# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""How web sees a worker, and short names for keys and tags by which two sides compare. Pure."""

import collections.abc
import dataclasses
import hashlib
import typing

RUNNING: typing.Final = "running"
ABSENT: typing.Final = "absent"
STATES: typing.Final = (RUNNING, "stalled", "landing", "landed", "retiring", ABSENT)
"""What web says of a worker (concourse 95872ce1a atc/db/worker.go), and that it lists none."""


@dataclasses.dataclass(frozen=True)
class Sight:
    """How web sees one worker.

    Attributes:
        state: one of STATES.
        tags: their digest; empty where web lists no such worker.
    """

    state: str
    tags: str = ""


@dataclasses.dataclass(frozen=True)
class Seen:
    """This unit's worker as its webs list it.

    Attributes:
        sights: each web's record; empty if none publishes one, as the public charm's.
        wanted: the digest of the planned tags; empty: any.
        since: for how many seconds no web's record has been right.
    """

    sights: tuple[Sight, ...] = ()
    wanted: str = ""
    since: float = 0.0

    @property
    def wrong(self) -> Sight | None:
        """The wrong record of a web; None if one is right, or if no web publishes one."""
        if not self.sights or any(is_right(sight, self.wanted) for sight in self.sights):
            return None
        return self.sights[0]


@dataclasses.dataclass(frozen=True)
class Rotation:
    """Keys that wait for their turn.

    Attributes:
        own: the worker's, for web to take it.
        awaited: the units that do not know the TSA's next host key yet, which the leader tells.
    """

    own: bool = False
    awaited: tuple[str, ...] = ()


def is_right(sight: Sight, wanted: str) -> bool:
    """Whether a worker is seen as it should be, with tags of this digest if one is given."""
    return sight.state == RUNNING and wanted in ("", sight.tags)


def digest(words: collections.abc.Iterable[str]) -> str:
    """A short name for some words, such as tags, whatever their order; equal for equal ones."""
    text = "\n".join(sorted(words))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def fingerprint(public_key: str) -> str:
    """A short name for a public key, given as `type base64`."""
    return digest([public_key])
