# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""What Juju itself tells this unit: its options with their secrets, its resource, its address."""

import typing

import ops

import config

TARBALL: typing.Final = "concourse"
WHEELS: typing.Final = "selftest-wheels"

_KEY_OPTION: typing.Final = "worker-private-key"
_KEY_FIELD: typing.Final = "private-key"


def read_options(model: ops.Model) -> config.Options:
    """The options, with the private key out of its secret.

    Raises:
        config.OptionError: if a value can't be used, or the secret can't be read.
    """
    raw: dict[str, object] = dict(model.config)
    if uri := raw.get(_KEY_OPTION):
        try:
            content = model.get_secret(id=str(uri)).get_content(refresh=True)
        except (ops.SecretNotFoundError, ops.ModelError) as error:
            raise config.OptionError(
                _KEY_OPTION, uri, f"can't be read: juju grant-secret <secret> {model.app.name}"
            ) from error
        if _KEY_FIELD not in content:
            raise config.OptionError(
                _KEY_OPTION, uri, f"has no field {_KEY_FIELD}: juju update-secret adds one"
            )
        raw[_KEY_OPTION] = content[_KEY_FIELD]
    return config.parse(raw)


def resource(model: ops.Model, name: str) -> str:
    """Path of a file given as a charm resource; empty if none, or an empty one, was attached."""
    try:
        path = model.resources.fetch(name)
    except ops.ModelError:
        return ""
    return str(path) if path.stat().st_size else ""


def address(model: ops.Model) -> str:
    """Where other units reach this one; empty while Juju doesn't know yet."""
    binding = model.get_binding("web-tsa")
    found = binding.network.ingress_address if binding else None
    return str(found or "")
