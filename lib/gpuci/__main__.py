# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Entry of the back end; compiled at each start, so it is kept to the import of what is not."""

import os
import sys

# The real path: a call that has begun keeps to its version when the link is switched meanwhile.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from gpuci.wrapper import main

main(sys.argv[1:])
