# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which files of apt's name a repository already.

apt does nothing at all where two of them name one repository with different keys: "Conflicting
values set for option Signed-By" (apt 2.6 apt-pkg/deb/debmetaindex.cc).
"""

import collections.abc
import pathlib
import re
import typing

_APT: typing.Final = "etc/apt"
_OURS: typing.Final = "gpu-ci-"  # how the names of machine.repositories begin
# sources.list(5): `deb [option=value ...] URI suite ...`; an option's value may have spaces.
_LINE: typing.Final = re.compile(r"deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)")


def naming(
    uri: str, suite: str, architecture: str, root: pathlib.Path = pathlib.Path("/")
) -> list[pathlib.Path]:
    """The files below /etc/apt that name a repository, but for those of this charm.

    Args:
        uri: of the repository.
        suite: of it; `/` where it has none.
        architecture: what stands for `$(ARCH)` in these files.
        root: where the machine's files are.

    Raises:
        OSError: a file can't be read.
    """
    folder = root / _APT / "sources.list.d"
    paths = [root / _APT / "sources.list", *sorted(folder.glob("*.list"))]
    named = [(path, _lines) for path in paths if path.exists()]
    named += [(path, _stanzas) for path in sorted(folder.glob("*.sources"))]
    wanted = _normal(uri, suite, architecture)
    found: list[pathlib.Path] = []
    for path, repositories in named:
        text = path.read_text(errors="replace")
        said = (_normal(*one, architecture) for one in repositories(text))
        place = pathlib.Path("/", path.relative_to(root))
        if not path.name.startswith(_OURS) and wanted in said:
            found.append(place)
    return found


def _normal(uri: str, suite: str, architecture: str) -> tuple[str, str]:
    uri, suite = (one.replace("$(ARCH)", architecture) for one in (uri, suite))
    return uri.rstrip("/"), suite


def _lines(text: str) -> collections.abc.Iterator[tuple[str, str]]:
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match:
            yield match.group(1), match.group(2)


def _stanzas(text: str) -> collections.abc.Iterator[tuple[str, str]]:
    """As sources.list(5) has it under "deb822-style format"."""
    text = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    for stanza in re.split(r"\n\s*\n", text):
        folded = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.partition(":") for line in folded.splitlines())
        fields = {name.strip().lower(): value.split() for name, _, value in pairs}
        if fields.get("enabled", ["yes"]) in (["no"], ["false"], ["0"], ["off"], ["without"]):
            continue
        for uri in fields.get("uris", []):
            for suite in fields.get("suites", []):
                yield uri, suite
