# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The OCI wrapper's back end: decides what a CI task gets and edits its bundle.

It runs as `/usr/bin/python3 -I -S` (3.10 or later) once for each create and exec of a task, with
nothing but the standard library. A job waits for its imports: `dataclasses`, `typing` or
`argparse` would each cost more than all of its own work.
"""
