# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Prove this project on a machine with a real NVIDIA GPU: `python3 scripts/prove_gpu`.

docs/how-to/prove-on-a-real-gpu.md says how to run it and how to read what it writes. The exit
status is 0 if all that ran passed, 1 if a proof failed or nothing was proven, and 2 if this
machine can't be used.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_TREE = os.path.dirname(os.path.dirname(_HERE))


def _packages():
    """Return the folder with the third-party packages; end this program if there is none."""
    kit = os.path.join(_TREE, ".prove-kit")
    venv = os.path.join(_TREE, ".venv", "lib")
    names = sorted(os.listdir(venv)) if os.path.isdir(venv) else []
    for place in (kit, *(os.path.join(venv, name, "site-packages") for name in names)):
        if os.path.exists(os.path.join(place, "pynvml.py")):
            return place
    return _give_up(
        "Python packages are missing. On a machine with a network run `make prove-kit`, and "
        "copy the folder .prove-kit to this tree; or run `make setup` here"
    )


def _give_up(why):
    print("prove-gpu: " + why, file=sys.stderr)
    sys.exit(2)


if sys.version_info < (3, 10):  # noqa: UP036 - an older one is told what to do
    _give_up("Python 3.10 or newer is needed: make prove-gpu PYTHON=/path/to/python3")
# In place of this folder, whose modules are imported as prove_gpu.*.
sys.path[0] = os.path.dirname(_HERE)
sys.path[1:1] = [os.path.join(_TREE, "lib"), _packages()]

from prove_gpu import program  # noqa: E402

sys.exit(program.main(sys.argv[1:]))
