"""Versions that results and reports keep."""

from __future__ import annotations

import platform

import numpy as np

import specedge
from specedge.versions import versions


def test_what_is_installed_has_a_version_and_what_is_not_is_left_out():
    assert versions("an engine", ("numpy", "no-such-package")) == {
        "specedge": specedge.__version__,
        "python": platform.python_version(),
        "engine": "an engine",
        "numpy": np.__version__,
    }
