# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""The NVIDIA runtime's private configuration, made from the packaged one."""

import pathlib
import re

import pytest
import tomlkit

from gpu_agent.runtime import nvidia_config as nvidia

GOLDEN = pathlib.Path(__file__).parent / "golden"
RUNC = "/opt/concourse/current/bin/runc"
PACKAGED = (GOLDEN / "nvidia-config.toml").read_text()


def test_the_packaged_configuration_with_our_needs_in_it():
    expected = (GOLDEN / "nvidia-config.private.toml").read_text()
    assert nvidia.private_config(PACKAGED, RUNC) == expected
    assert nvidia.private_config(expected, RUNC) == expected


def test_in_a_user_namespace_the_runtime_leaves_device_rules_alone():
    """Else the mode legacy, the default before 1.18, starts no container there."""
    nested = tomlkit.parse(nvidia.private_config(PACKAGED, RUNC, nested=True)).unwrap()
    plain = tomlkit.parse(nvidia.private_config(PACKAGED, RUNC)).unwrap()
    assert nested["nvidia-container-cli"].pop("no-cgroups") is True
    assert "no-cgroups" not in plain["nvidia-container-cli"]
    assert nested == plain


@pytest.mark.parametrize(
    "base",
    [
        PACKAGED,
        "",
        (
            '[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = [""]\n[nvidia-ctk]\n'
            '[nvidia-container-runtime]\nruntimes = ["runc"]\ndebug = "/x"\n'
        ),
        '[nvidia-container-runtime]\nmodes = {cdi = {annotation-prefixes = ["x/"]}}\n',
        (
            'swarm-resource = "A,B"\naccept-nvidia-visible-devices-as-volume-mounts = true\n'
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        ),
    ],
    ids=["packaged", "empty", "out of order", "inline", "doors open"],
)
def test_every_door_is_shut_and_runc_is_absolute(base):
    found = tomlkit.parse(nvidia.private_config(base, RUNC)).unwrap()
    runtime = found["nvidia-container-runtime"]
    assert runtime["runtimes"] == [RUNC]
    assert runtime["modes"]["cdi"]["annotation-prefixes"] == []
    assert found["accept-nvidia-visible-devices-as-volume-mounts"] is False
    assert found["accept-nvidia-visible-devices-envvar-when-unprivileged"] is True
    assert "swarm-resource" not in found
    assert "debug" not in runtime
    assert "debug" not in found.get("nvidia-container-cli", {})


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("[nvidia-container-runtime", "cannot be read: "),
        ("a = 1\na = 2\n", "cannot be read: "),
        ("nvidia-container-runtime = 3\n", "nvidia-container-runtime is not a table in "),
    ],
)
def test_what_is_no_base_is_named_with_the_remedy(base, words):
    with pytest.raises(nvidia.ConfigError, match="reinstall nvidia-container-toolkit") as caught:
        nvidia.private_config(base, RUNC)
    assert words in str(caught.value)
    assert "/etc/nvidia-container-runtime/config.toml" in str(caught.value)


OPEN = {
    "runtimes is ['runc'], not ['/opt/concourse/current/bin/runc']": (
        '["/opt/concourse/current/bin/runc"]', '["runc"]',
    ),
    "annotation-prefixes is not empty, so annotations ask for GPUs": (
        "annotation-prefixes = []", 'annotation-prefixes = [""]',
    ),
    "volume mounts ask for GPUs": ("as-volume-mounts = false", "as-volume-mounts = true"),
    "variables of tasks that are not privileged ask for none": (
        "envvar-when-unprivileged = true", "envvar-when-unprivileged = false",
    ),
    "swarm-resource names another variable that asks for GPUs": (
        "accept-nvidia-visible-devices-as",
        'swarm-resource = "A"\naccept-nvidia-visible-devices-as',
    ),
}  # fmt: skip


@pytest.mark.parametrize("base", [PACKAGED, ""], ids=["packaged", "empty"])
@pytest.mark.parametrize("fault", OPEN)
def test_a_door_that_was_opened_is_named(base, fault):
    private = nvidia.private_config(base, RUNC)
    assert nvidia.faults(private, RUNC) == ()
    old, new = OPEN[fault]
    changed, count = re.subn(f"^(?!#)(.*){re.escape(old)}", rf"\g<1>{new}", private, flags=re.M)
    assert count == 1
    assert nvidia.faults(changed, RUNC) == (fault,)


def test_the_toolkits_defaults_are_no_private_configuration():
    assert len(nvidia.faults("", RUNC)) == 2
    assert len(nvidia.faults("nvidia-container-runtime = 3", RUNC)) == 2
    assert nvidia.faults(PACKAGED, RUNC)
    (fault,) = nvidia.faults("[", RUNC)
    assert fault.startswith("it is not TOML: ")
