# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Judge the answers of workload/, except rates, which judge.py judges. Without side effects.

An answer counts wrong values; a healthy GPU has none.
"""

import collections.abc
import typing

from gpu_selftest.check import Check, Level, Outcome, Said
from gpu_selftest.compute import floors
from gpu_selftest.results import HOME

_REPLACE: typing.Final = "Replace the GPU (`dcgmi diag -r 3` gives details for its vendor)"
_REBOOT: typing.Final = (
    "Reboot the machine (`sudo dmesg | grep NVRM` may show why); if it happens again, replace the "
    "GPU"
)
_COOL: typing.Final = (
    "Check for heat, a power limit and other programs (`nvidia-smi dmon -s pcv` under load, or "
    "the level burn-in); a GPU that stays slow needs repair"
)
_LINK: typing.Final = (
    "Check the slot, riser and cable (under load: `nvidia-smi --query-gpu=index,"
    "pcie.link.gen.current,pcie.link.width.current --format=csv`)"
)
_EXACTLY: typing.Final = "no wrong value"
# The share of the memory that must have been tested.
_MOST: typing.Final = 0.7

_Answer = collections.abc.Mapping[str, typing.Any]


_COMPARED: typing.Final = "its own last good run; others of its model"
_ROUNDING: typing.Final = (
    "Higham, Accuracy and Stability of Numerical Algorithms, section 3.5: rounding of sums"
)


def _check(
    name: str,
    proves: str,
    remedy: str = "",
    unit: str = "",
    source: str = "",
    *,
    condemns: bool = True,
) -> Check:
    return Check(
        name,
        Level.COMPUTE,
        proves,
        remedy=remedy,
        source=source,
        unit=unit,
        each_gpu=True,
        condemns=condemns,
    )


ENVIRONMENT: typing.Final = Check(
    "pytorch", Level.COMPUTE, "PyTorch and ONNX Runtime for this driver are installed and load"
)
RESULTS: typing.Final = _check(
    "results",
    "matrix products in every number format equal those of the CPU",
    _REPLACE,
    source=_ROUNDING,
)
RATES: typing.Final = {
    name: _check(
        f"matrix-rate-{name}", f"matrix products in {name} are as fast as they should be",
        _COOL, "TFLOPS", f"{floors.DCGM}; {_COMPARED}" if name in ("fp64", "fp32") else _COMPARED,
    )
    for name in ("fp64", "fp32", "tf32", "fp16", "bf16")
}  # fmt: skip
COPY: typing.Final = _check(
    "copy-bandwidth",
    "the GPU's own memory is as fast as it should be",
    _COOL,
    "GB/s",
    f"{floors.DCGM}; {_COMPARED}",
)
HOST: typing.Final = _check(
    "host-bandwidth",
    "copies from and to the host are as fast as they should be",
    _LINK,
    "GB/s",
    f"{floors.AZURE}; {_COMPARED}",
    # Jobs that copy a lot compete for the host's memory.
    condemns=False,
)
MEMORY: typing.Final = _check(
    "memory-pattern", "the GPU's memory keeps what is written to it", _REPLACE, "GiB"
)
ONNX: typing.Final = _check(
    "onnxruntime", "ONNX Runtime runs a model on the GPU and does not fall back to the CPU"
)
CONTAINER: typing.Final = _check(
    "container",
    "PyTorch gives the same correct results inside a task's container",
    _REPLACE,
    source=_ROUNDING,
)
PEER: typing.Final = _check(
    "peer",
    "copies to the other GPUs are correct and fast",
    _LINK,
    "GB/s",
    f"{floors.AZURE}; {_COMPARED}",
)


def broken(check: Check, error: Exception) -> Said:
    """Return the failure of a check whose work broke off."""
    program = "ONNX Runtime" if check == ONNX else "PyTorch"
    return Said(Outcome.FAILED, f"{program} failed: {error}", remedy=_REBOOT)


def results(answer: _Answer) -> Said:
    """Judge the answer of mode `results`."""
    formats: dict[str, dict[str, float]] = answer["formats"]
    bad = {name: words for name, found in formats.items() if (words := _wrong(found))}
    if bad:
        told = "; ".join(f"{name}: {words}" for name, words in bad.items())
        return Said(Outcome.FAILED, f"wrong results: {told}", threshold=_EXACTLY)
    values = sum(int(found["values"]) for found in formats.values())
    text = (
        f"{values} values of {', '.join(formats)} are within the rounding error, and equal to the "
        "bit when repeated"
    )
    return Said(Outcome.PASSED, text, threshold=_EXACTLY)


def _wrong(found: collections.abc.Mapping[str, float]) -> str:
    words = {
        "inexact": "of the integers are wrong",
        "wrong": f"are wrong, by up to {found['largest']:.3g} times the rounding error",
        "unequal": "differ when repeated",
    }
    told = [f"{int(found[name])} {what}" for name, what in words.items() if found[name]]
    return f"of {int(found['values'])} values {', '.join(told)}" if told else ""


def memory(answer: _Answer) -> Said:
    """Judge the answer of mode `memory`."""
    tested, total = answer["bytes"] / 2**30, answer["total"] / 2**30
    if answer["wrong"]:
        told = f"{answer['wrong']} words are wrong, the first {answer['first']:#x} bytes in"
        return Said(Outcome.FAILED, f"memory faulty: {told}", tested, threshold=_EXACTLY)
    # On a GPU without other users, nine tenths of the free memory are most of all memory.
    if tested < _MOST * total:
        text = f"only {tested:.1f} of {total:.1f} GiB were free and tested"
        remedy, threshold = (
            "Check who uses the memory (`nvidia-smi`)",
            f"at least {_MOST:.0%} of its memory",
        )
        return Said(Outcome.WARNING, text, tested, remedy, threshold)
    text = f"{tested:.1f} of {total:.1f} GiB keep their number and its inverse"
    return Said(Outcome.PASSED, text, tested, threshold=_EXACTLY)


def onnx(answer: _Answer) -> Said:
    """Judge the answer of mode `onnx`."""
    wanted: str = answer["wanted"]
    ran_on: dict[str, str] = answer["ran_on"]
    elsewhere = {node: where for node, where in ran_on.items() if where != wanted}
    version = answer["onnxruntime"]
    providers = f"{version}: {', '.join(answer['available'])}"
    threshold = f"every node on {wanted}"
    remedy = (
        "Install onnxruntime-gpu alone where the job runs (`pip list | grep onnxruntime`; if both "
        "packages or the one for the CPU are there: `pip uninstall -y onnxruntime onnxruntime-gpu "
        f"&& pip install onnxruntime-gpu=={version}`; then "
        f"`onnxruntime.get_available_providers()` lists {wanted}); to reinstall the self-test's "
        f"own packages: `sudo rm -r {HOME}/venv-*`"
    )
    if answer["providers"][:1] != [wanted] or elsewhere or not ran_on:
        where = ", ".join(f"{node} on {at}" for node, at in (elsewhere or ran_on).items())
        text = (
            f"ONNX Runtime fell back to the CPU: the session of version {version} has "
            f"{', '.join(answer['providers'])}, and ran {where or 'no node that it reports'}"
        )
        return Said(Outcome.FAILED, text, providers, threshold=threshold, remedy=remedy)
    if answer["wrong"]:
        text = f"ONNX Runtime gives wrong results: {answer['wrong']} values on {wanted} are wrong"
        return Said(Outcome.FAILED, text, providers, threshold=_EXACTLY, remedy=_REPLACE)
    text = f"ONNX Runtime {version} ran {', '.join(ran_on)} on {wanted}, with the right result"
    return Said(Outcome.PASSED, text, providers, threshold=threshold)


def blamed(pairs: collections.abc.Sequence[_Answer], count: int) -> set[int]:
    """Return which of `count` GPUs fail because of copies between them.

    A GPU whose copies fail with most other GPUs is at fault, and those are not. If no GPU is, both
    GPUs of a failing pair fail, since nothing shows which one is at fault.
    """
    bad = {frozenset((pair["from"], pair["to"])) for pair in pairs if pair["wrong"]}
    often = {index for index in range(count) if 2 * sum(index in pair for pair in bad) > count - 1}
    unexplained = [pair for pair in bad if not pair & often]
    return often.union(*unexplained)
