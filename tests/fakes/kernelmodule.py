# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""A file as a kernel module is one: 64-bit ELF with a section that tells its version."""

import struct


def module(version: str) -> bytes:
    """The bytes of a module that says it has this version; no kernel would load it."""
    names = b"\0.text\0.modinfo\0.shstrtab\0"
    info = b"license=NVIDIA\0srcversion=1.2\0version=" + version.encode() + b"\0alias=x\0"
    bodies = [b"", b"\x90" * 7, info, names]
    at, rows = 64, list[bytes]()
    for name, body in zip((0, 1, 7, 16), bodies, strict=True):
        rows.append(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, len(body), 0, 0, 1, 0))
        at += len(body)
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + struct.pack("<Q", at)
    head += struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, len(rows), 3)
    return head + b"".join(bodies) + b"".join(rows)
