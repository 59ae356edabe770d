# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Check that ONNX Runtime really runs a model on the GPU: mode `onnx`.

If CUDA can't be used, it falls back to the CPU without an error and still lists the CUDA provider.
So a session is made and run, and its profile shows where each node ran.
"""

import json
import pathlib

import numpy
import onnx
import onnx.helper
import onnxruntime

from devices import Device

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


def run(device: Device, scratch: str) -> dict[str, object]:
    """Return the answer: the session's providers, which of them ran each node, wrong values."""
    wanted = [_CUDA, _CPU] if device.is_cuda else [_CPU]
    if device.is_cuda:
        # CUDA's libraries are in the environment's packages, where no linker looks.
        onnxruntime.preload_dlls(directory="")
    size = 512 if device.is_cuda else 64
    chance = numpy.random.default_rng(size)
    data, weights = (chance.standard_normal((size, size)).astype("float32") for _ in "ab")
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(pathlib.Path(scratch) / "onnxruntime")
    # TF32 would round the inputs to ten bits.
    providers = [(name, {"use_tf32": "0"}) if name == _CUDA else name for name in wanted]
    session = onnxruntime.InferenceSession(model(weights), options, providers=providers)
    (result,) = session.run(None, {"data": data})
    profile = pathlib.Path(session.end_profiling())
    expected = numpy.maximum(data.astype("float64") @ weights, 0.0)
    # As in matrices: k u_sum |A| |B|, with the unit roundoff of float32, twice for tensor cores.
    bound = size * 2.0**-23 * (abs(data).astype("float64") @ abs(weights)) + 2.0**-24 * expected
    return {
        **device.about,
        "onnxruntime": onnxruntime.__version__,
        "available": onnxruntime.get_available_providers(),
        "wanted": wanted[0],
        "providers": session.get_providers(),
        "ran_on": ran_on(json.loads(profile.read_text(encoding="utf-8"))),
        "wrong": int((~(abs(result - expected) <= bound)).sum()),
    }


def model(weights: numpy.ndarray) -> bytes:
    """A small model: Relu(data x weights)."""
    tensor, helper = onnx.TensorProto.FLOAT, onnx.helper
    shape = list(weights.shape)
    nodes = [
        helper.make_node("MatMul", ["data", "weights"], ["product"]),
        helper.make_node("Relu", ["product"], ["result"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gpu-selftest",
        [helper.make_tensor_value_info("data", tensor, shape)],
        [helper.make_tensor_value_info("result", tensor, shape)],
        [helper.make_tensor("weights", tensor, shape, weights.tobytes(), raw=True)],
    )
    # Versions that every ONNX Runtime of recent years reads.
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def ran_on(profile: list[dict[str, object]]) -> dict[str, str]:
    """Return the provider that ran each node, by operator, from a profile of ONNX Runtime."""
    found: dict[str, str] = {}
    for event in profile:
        told = event.get("args") or {}
        if event.get("cat") == "Node" and isinstance(told, dict) and "provider" in told:
            found[str(told.get("op_name"))] = str(told["provider"])
    return found
