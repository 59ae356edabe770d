# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Reading Juju's secrets, where none may be given."""

import ops


class WithheldError(Exception):
    """Juju doesn't give this unit the content of a secret: it is not granted, or is gone."""


def content(model: ops.Model, uri: str, *, refresh: bool = False) -> dict[str, str]:
    """What is in a secret.

    Args:
        model: this unit's.
        uri: the secret's name, such as `secret:cvq0000000000000000g`.
        refresh: its latest revision, rather than the one that this unit has seen first.

    Raises:
        WithheldError: it is not granted to this unit, or is gone.
        ops.ModelError: Juju can't tell now; the hook fails and Juju tries it again.
    """
    try:
        return model.get_secret(id=uri).get_content(refresh=refresh)
    except ops.SecretNotFoundError as error:
        raise WithheldError from error
    except ops.ModelError as error:
        # ops has no class for it (ops 3.9.0 model.py, Model.get_secret).
        if "permission denied" not in str(error).lower():
            raise
        raise WithheldError from error
