"""What an error line says of an exception."""

from __future__ import annotations

import pytest

from specedge.errors import one_line, with_class


@pytest.mark.parametrize(
    ("error", "bare", "classed"),
    [
        (ValueError("a\n  b\tc"), "a b c", "ValueError: a b c"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (RuntimeError(" \n "), "RuntimeError", "RuntimeError"),
    ],
)
def test_an_error_is_said_on_one_line_and_by_its_class_where_it_says_nothing(error, bare, classed):
    assert one_line(error) == bare
    assert with_class(error) == classed
