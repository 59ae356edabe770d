# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Make a GPU work and print the result: `python FOLDER MODE [--device cuda|cpu]`.

It runs with PyTorch in its own environment, on the worker or inside a container, without the
charm. The answer is one line of JSON on standard output (`load` writes one line a second). It
judges whether results are right; it only measures how fast they come. With `--device cpu` the same
code works at a smaller size and proves nothing about a GPU.
"""

import argparse
import json
import sys

import bandwidth
import devices
import load
import matrices
import memory
import peer
import rates

_MODES = {
    "results": lambda device, _: matrices.run(device),
    "rates": lambda device, _: rates.run(device),
    "bandwidth": lambda device, _: bandwidth.run(device),
    "memory": lambda device, _: memory.run(device),
    "peer": lambda device, _: peer.run(device),
    "onnx": lambda device, asked: _onnx(device, asked.scratch),
    "load": lambda device, asked: load.run(device, asked.seconds),
}


def _onnx(device: devices.Device, scratch: str) -> dict[str, object]:
    """Import ONNX Runtime only here: the other modes need PyTorch alone."""
    import session  # noqa: PLC0415

    return session.run(device, scratch)


def main() -> int:
    """Run the mode and print its answer."""
    parser = argparse.ArgumentParser(prog="workload")
    parser.add_argument("mode", choices=_MODES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long load lasts")
    parser.add_argument("--scratch", default=".", help="where onnx may write its profile")
    asked = parser.parse_args()
    try:
        device = devices.find(asked.device)
        answer = _MODES[asked.mode](device, asked)
    except devices.UnsupportedError as error:
        answer = {"unsupported": str(error)}
    print(json.dumps({"mode": asked.mode, **answer}), flush=True)
    return 0


sys.exit(main())
