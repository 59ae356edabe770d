# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""Which releases of Concourse work together."""

import pytest

from ci.concourse.upstream import works_with


@pytest.mark.parametrize(
    ("worker", "web", "works"),
    [
        ("8.3.0", "8.3.0", True),
        ("8.4.1", "8.3.0", True),
        ("8.3.0", "9.0.0", True),
        ("8.3.0", "8.2.5", False),
        ("8.2.5", "8.3.0", False),
        ("8.2.5", "8.0.0", True),
        ("8.0.0", "8.2.5", True),
        ("8.2.0", "7.9.1", True),
        ("7.9.1", "8.2.0", False),
        ("7.9.1", "7.10.0", False),
        ("7.10.0", "7.9.1", True),
        ("8.3.0", "8.3.1-rc.2", True),
        # What a web may write into its databag.
        ("8.3.0", f"{'9' * 5000}.0.0", True),
        ("8.3.0", f"0.{'9' * 5000}.0", False),
    ],
)
def test_web_and_worker_move_together(worker, web, works):
    assert works_with(worker, web) is works
