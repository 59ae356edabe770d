# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The codes of refusals: in a message that people see, and in the product's source."""

import ast
import collections.abc
import contextlib
import pathlib
import re

import pytest

from gpu_runtime.refusal import Refused

ROOT = pathlib.Path(__file__).resolve().parents[2]
_ERRORS = ("Refused", "FailedError")


def code_of(message: str) -> str:
    """Return the code in `gpu-ci-worker: CODE: text` or `gpu-run: CODE: text`; empty if none."""
    found = re.search(r"(?:gpu-ci-worker|gpu-run): ([a-z]+(?:-[a-z]+)+): ", message)
    return found[1] if found else ""


@contextlib.contextmanager
def refuses(code: str) -> collections.abc.Iterator[pytest.ExceptionInfo[Refused]]:
    """Expect a refusal with this code."""
    with pytest.raises(Refused) as caught:
        yield caught
    assert caught.value.code == code


def made_in(path: pathlib.Path) -> dict[str, list[str]]:
    """Return the codes of each refusal in a module by `file:line`; "?" if not constant."""
    return {
        f"{path.name}:{node.lineno}": _constants(node.args[0])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _ERRORS
    }


def _constants(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return _constants(node.body) + _constants(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) else ["?"]
