# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Renders the charm's own templates."""

import pathlib
import typing

import jinja2

_FOLDER: typing.Final = pathlib.Path(__file__).resolve().parents[2] / "templates"


def render(name: str, /, **values: object) -> str:
    """Render templates/NAME. A value that the template wants and is not given is an error.

    Raises:
        jinja2.UndefinedError: for such a value.
        jinja2.TemplateNotFound: if there is no such template.
    """
    environment = jinja2.Environment(  # noqa: S701 none of these is HTML
        loader=jinja2.FileSystemLoader(_FOLDER),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
