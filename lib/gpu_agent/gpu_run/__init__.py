# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run: GPUs by a lease for a command of a person, or of another CI system's runner.

client.py is the command gpu-run, which runs as its caller. door.py accepts its connection, and
starts __main__.py as root in a separate process. That process takes a lease, moves the caller's
process into a scope with only those device nodes, and ends. The user's command is never a child of
root's process.
"""
