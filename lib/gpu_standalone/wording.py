# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Remedies as an operator without Juju carries them out. Pure.

Diagnosis, self-test and health service name the commands of Juju. Their texts stay as they are in
records, which a charm may read later; this is for the moment in which a person sees them.
"""

import re
import typing

_FILE: typing.Final = "/etc/gpu-ci/agent.json"
_WORD: typing.Final = r"[^\s`,;)]+"
_ACTION: typing.Final = re.compile(
    rf"(?:juju run {_WORD} )?\b(gpu-selftest|gpu-uncordon)((?: [a-z-]+=(?:\"[^\"]*\"|{_WORD}))*)"
)
_REPLACED: typing.Final = (
    # The agent installs no driver.
    (rf", or juju config {_WORD} gpu-driver=auto", ""),
    (rf"juju config {_WORD} enable-gpu=false`?, then `?juju config {_WORD} enable-gpu=true",
     "sudo gpu-ci-agent install"),
    (rf"juju config {_WORD} enable-gpu=false", "sudo gpu-ci-agent remove"),
    (rf"juju config {_WORD} enable-gpu=true", "sudo gpu-ci-agent start"),
    (rf"juju config {_WORD} gpu-recovery=reset", "sudo nvidia-smi --gpu-reset"),
    (rf"juju config {_WORD} ([a-z-]+)=({_WORD}(?:,[a-z-]+={_WORD})*)",
     rf"set \1 to \2 in {_FILE}"),
    (rf"juju config {_WORD} ([a-z-]+)=", rf"empty \1 in {_FILE}"),
    (rf"juju attach-resource {_WORD} selftest-wheels=({_WORD})",
     rf"set selftest-wheels in {_FILE} to the path of \1"),
    (rf"juju ssh {_WORD} ", ""),
    (r"juju model-config juju-https-proxy", "https_proxy in /etc/environment"),
    (r"juju status", "sudo gpu-ci-agent status"),
)  # fmt: skip


def without_juju(text: str) -> str:
    """Return a text with the commands of this machine in the place of Juju's."""
    text = _ACTION.sub(_command, text)
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text)
    return text


def _command(action: "re.Match[str]") -> str:
    name, given = action.groups()
    verb = {"gpu-selftest": "self-test", "gpu-uncordon": "uncordon"}[name]
    options = re.sub(r" ([a-z-]+)=", r" --\1 ", given)
    return f"sudo gpu-ci-agent {verb}{options}"
