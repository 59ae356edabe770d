# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The GPU runtime: it decides which GPUs a container gets, and edits the container's bundle.

It runs as `/usr/bin/python3 -I -S` (3.10 or later) once for each create and exec of a task. It
uses the standard library only. Each task waits for its imports: `dataclasses`, `typing` or
`argparse` would each take longer than the work itself.
"""
