# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""JSON with only the C half of the standard library's json module, if there is one.

`import json` compiles regular expressions at each start (re, enum, functools). That takes 6 ms on
a machine where bare Python takes 6, and every GPU task waits for it. The C half is private to
CPython and was the same from 3.6 to 3.14. If it differs, json itself is used.
"""

from __future__ import annotations

from gpu_runtime.json_shape import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar


def _no_constant(name: str) -> object:
    raise ValueError(f"it has {name}, which JSON lacks")


def _not_json(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


class _Plain:
    """The settings that json.JSONDecoder() passes to its scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)


# The names that runtimes read in a config.json and a process file; and the names that engines and
# this package read in an image's manifest and configuration.
SPEC = frozenset(
    {
        *("access", "action", "additionalGids", "allow", "annotations", "args", "architectures"),
        *("blockIO", "bounding", "capabilities", "cgroupsPath", "class", "containerID", "count"),
        *("cpu", "createContainer", "createRuntime", "cwd", "defaultAction", "defaultErrnoRet"),
        *("destination", "devices", "domainname", "effective", "env", "errnoRet", "fileMode"),
        *("flags", "gid", "gidMappings", "hard", "hooks", "hostID", "hostname", "index"),
        *("inheritable", "intelRdt", "limit", "linux", "major", "maskedPaths", "memory", "minor"),
        *(
            "mountLabel",
            "mounts",
            "names",
            "namespaces",
            "network",
            "noNewPrivileges",
            "ociVersion",
        ),
        *("oomScoreAdj", "op", "options", "path", "permitted", "personality", "pids", "poststart"),
        *("poststop", "prestart", "process", "readonly", "readonlyPaths", "resources", "rlimits"),
        *("root", "rootfsPropagation", "seccomp", "selinuxLabel", "shares", "size", "soft"),
        *("source", "startContainer", "swap", "syscalls", "sysctl", "terminal", "timeout", "type"),
        *("uid", "uidMappings", "umask", "unified", "user", "value", "valueTwo"),
    }
)
IMAGE = frozenset({"config", "digest", "Env"})


class _Reading:
    """The state of the current read, with the names that must be spelt exactly.

    Attributes:
        names: those names; `folded`: the same, as Go compares them.
        odd: objects, each with a name that Go may take for one of those names.
    """

    names: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    odd: ClassVar[list[tuple[dict[str, object], str]]] = []


def _spelt(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a name twice in one object")
    if not _Reading.names.issuperset(found):
        for name in found:
            if name not in _Reading.names and name.casefold() in _Reading.folded:
                _Reading.odd.append((found, name))
    return found


def _check_names(value: object) -> None:
    """Check that no name differs from a known name in case only; names that people choose may.

    Raises:
        ValueError: one does.
    """
    found = table(value)
    linux = table(found.get("linux"))
    resources = table(linux.get("resources"))
    chosen = (
        *(found.get("annotations"), linux.get("sysctl"), resources.get("unified")),
        table(found.get("config")).get("Labels"),
    )
    for one, name in _Reading.odd:
        if not any(one is other for other in chosen):
            raise ValueError(f"it has the name {name!r}, a known name in another case")


class _ForGo(_Plain):
    """The same for files that a program in Go reads too."""

    object_pairs_hook = staticmethod(_spelt)


_SORTED = _SKIPPING = _NAN = False
try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    # typeshed takes the context for a scanner.
    _scan = make_scanner(_Plain)  # pyright: ignore[reportArgumentType]
    _scan_for_go = make_scanner(_ForGo)  # pyright: ignore[reportArgumentType]
    _in_c = make_encoder(
        None, _not_json, encode_basestring_ascii, None, ":", ",", _SORTED, _SKIPPING, _NAN
    )

    def _encode(value: object) -> Iterable[str]:
        return _in_c(value, 0)

except (ImportError, TypeError):
    from json import JSONDecoder, JSONEncoder
    from json.scanner import make_scanner

    _decoder = JSONDecoder(parse_constant=_no_constant)
    _scan = make_scanner(_decoder)  # pyright: ignore[reportArgumentType]
    _decoder_for_go = JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_spelt)
    _scan_for_go = make_scanner(_decoder_for_go)  # pyright: ignore[reportArgumentType]
    _encoder = JSONEncoder(separators=(",", ":"), allow_nan=_NAN, default=_not_json)

    def _encode(value: object) -> Iterable[str]:
        return _encoder.iterencode(value)


def loads(content: bytes, names: frozenset[str] | None = None) -> object:
    """Return the value of the JSON text `content`.

    Args:
        content: the text.
        names: the names that a program in Go looks for in it. Go ignores the case of names and
            merges duplicate ones (encoding/json), so it could read another value than this
            package. None: there is no such program.

    Raises:
        ValueError: `content` is not JSON in UTF-8, or can be read in two ways.
    """
    text = content.decode().strip(" \t\n\r")
    if names is not None and names is not _Reading.names:
        _Reading.names, _Reading.folded = names, frozenset(map(str.casefold, names))
    _Reading.odd.clear()
    try:
        value, end = (_scan if names is None else _scan_for_go)(text, 0)
    except (StopIteration, SystemError) as error:
        # Up to Python 3.11 the C half has no message for a syntax error unless json is imported.
        raise ValueError("it is not JSON") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if end != len(text):
        raise ValueError(f"something follows its JSON value at character {end}")
    if _Reading.odd:
        _check_names(value)
    return value


def dumps(value: object) -> str:
    """Return `value` as compact JSON in ASCII.

    Raises:
        ValueError: it holds a number that JSON lacks, or is nested too deeply.
    """
    try:
        return "".join(_encode(value))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
