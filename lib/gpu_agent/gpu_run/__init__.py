# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""gpu-run: GPUs for a command of a person, or of a runner that is none of ours, by a lease.

client.py is the command itself, its caller's own process. door.py takes its connection, and has
__main__.py serve it in a process of its own, which is root's part: that takes a lease, puts the
caller's process into a scope with those device nodes alone, and ends; what is run is never root's
child.
"""
