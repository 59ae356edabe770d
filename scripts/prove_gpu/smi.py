# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Ask nvidia-smi, the source that is not this project's code."""

import re
import shutil
import xml.etree.ElementTree as ET

from machine import process
from prove_gpu.proof import NotRunError

# In seconds. Without persistence mode the driver initialises all GPUs at each call.
_PATIENCE = 30
_UNKNOWN = re.compile(r"\[?(N/A|Not Supported|Not Found)\]?|.*has been deprecated|")


def program() -> str:
    """Return the path of nvidia-smi.

    Raises:
        NotRunError: there is none.
    """
    found = shutil.which("nvidia-smi")
    if not found:
        raise NotRunError("there is no nvidia-smi on PATH to compare with")
    return found


def query(*fields: str) -> dict[str, dict[str, str | None]]:
    """Return these fields of `nvidia-smi --query-gpu` by the GPU's UUID; None: not reported.

    Raises:
        NotRunError: there is no nvidia-smi.
        machine.process.CommandError: it fails.
    """
    asked = ",".join(("uuid", *fields))
    argv = [program(), f"--query-gpu={asked}", "--format=csv,noheader,nounits"]
    rows = process.run(argv, timeout=_PATIENCE).stdout.splitlines()
    found: dict[str, dict[str, str | None]] = {}
    for row in filter(None, map(str.strip, rows)):
        uuid, *values = row.split(", ")
        found[uuid] = dict(zip(fields, map(known, values), strict=True))
    return found


def first_known(*fields: str) -> dict[str, str | None]:
    """Return the first field that this nvidia-smi has, by UUID; empty if it has none of them."""
    for field in fields:
        try:
            return {uuid: row[field] for uuid, row in query(field).items()}
        except process.CommandError:  # not a field of this version
            continue
    return {}


def document() -> ET.Element:
    """Return `nvidia-smi -q -x`.

    Raises:
        NotRunError: there is no nvidia-smi.
        machine.process.CommandError: it fails.
    """
    said = process.run([program(), "-q", "-x"], timeout=_PATIENCE).stdout
    # The driver's own program writes it, on this machine.
    return ET.fromstring(said)


def gpus(whole: ET.Element) -> dict[str, ET.Element]:
    """Return the part of each GPU in the document, by UUID."""
    return {text(gpu, "uuid") or "": gpu for gpu in whole.findall("gpu")}


def text(part: ET.Element, *paths: str) -> str | None:
    """Return the text at the first of these paths that the document has; None: not reported."""
    for path in paths:
        found = part.findtext(path)
        if found is not None:
            return known(found)
    return None


def number(part: ET.Element, *paths: str) -> float | None:
    """Return the number at a path, without its unit."""
    said = text(part, *paths)
    match = re.match(r"-?[0-9]+(\.[0-9]+)?", said or "")
    return float(match.group()) if match else None


def known(said: str) -> str | None:
    """Return a value; None for the words by which nvidia-smi reports none."""
    said = said.strip()
    return None if _UNKNOWN.fullmatch(said) else said


def mig_devices() -> dict[str, str]:
    """Return the profile of each MIG device by its UUID, as `nvidia-smi -L` lists them."""
    said = process.run([program(), "-L"], timeout=_PATIENCE).stdout
    found = re.findall(r"MIG (\S+)\s+Device\s+[0-9]+: \(UUID: (MIG-[^)]+)\)", said)
    return {uuid: profile for profile, uuid in found}
