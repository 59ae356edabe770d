#!/usr/bin/python3 -I
# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The stand-in's ``bin/concourse``: finds its code beside the real folder that it lies in."""

import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "standin"))

from concourse_standin.main import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
