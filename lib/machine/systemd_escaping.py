# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Escape values for systemd, so that systemd reads back exactly these values."""

import re


def environment_value(text: str) -> str:
    r"""Return a value for an EnvironmentFile=.

    Between double quotes systemd removes a backslash before a quote, a backslash, a backtick and a
    dollar sign (systemd 249 and 252 src/basic/env-file.c, SHELL_NEED_ESCAPE); everything else
    stands for itself.

    Raises:
        ValueError: the value has a control character, which no setting of ours needs.
    """
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("a setting has a control character")
    return '"' + re.sub(r'(["\\`$])', r"\\\1", text) + '"'


def plain_value(text: str) -> str:
    """Return the plain value of one in an EnvironmentFile=; a value without quotes is itself."""
    if text[:1] != '"':
        return text
    return re.sub(r'\\(["\\`$])', r"\1", text[1:-1])


def exec_argument(text: str) -> str:
    r"""Return one argument for an ExecStart=.

    systemd undoes quotes and backslashes, then % specifiers, then $ variables (systemd.service(5)
    "COMMAND LINES", systemd.unit(5) "SPECIFIERS").

    Raises:
        ValueError: the argument has a control character.
    """
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("an argument has a control character")
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return '"' + escaped.replace("%", "%%").replace("$", "$$") + '"'
