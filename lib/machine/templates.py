# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Render Jinja templates."""

import pathlib

import jinja2


def render(folder: pathlib.Path, name: str, /, **values: object) -> str:
    """Render the template `name` of a folder.

    Raises:
        jinja2.UndefinedError: a value that the template needs is missing.
        jinja2.TemplateNotFound: there is no such template.
    """
    environment = jinja2.Environment(  # noqa: S701 none of these is HTML
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)
