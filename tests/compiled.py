# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A plugin of pytest's for `make test`: test files are compiled once, for all processes and runs.

Each process collects all files, and half of that would be to compile them.
"""

import os
import pathlib
import sys
import typing

# Where `make test` has what is compiled; apart from the tree, which no test changes.
_FOLDER: typing.Final = "GPUCI_TESTS_COMPILED"
_before = sys.pycache_prefix, sys.dont_write_bytecode

if folder := os.environ.get(_FOLDER, ""):
    sys.pycache_prefix = folder
    pathlib.Path(folder).mkdir(exist_ok=True)
    # Of root's, none is to be in the way of whose tree it is.
    sys.dont_write_bytecode = pathlib.Path(folder).stat().st_uid != os.geteuid()


def pytest_collection_finish() -> None:
    """From here on Python is what it was for whatever a test compiles."""
    sys.pycache_prefix, sys.dont_write_bytecode = _before
