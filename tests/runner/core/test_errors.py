"""An error's message as one line."""

import mlx.core as mx
import pytest
from mlx_bulk.runner.core.errors import first_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one line", "one line"),
        ("", "ValueError"),
        ("\n  first\nsecond", "first"),
        ("Validation error for field 'x':\n\n    expected int, got float\nmore", "Validation error for field 'x': expected int, got float"),
        ("nothing follows:", "nothing follows:"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_a_line_says_what_it_announces(message: str, line: str):
    assert first_line(ValueError(message)) == line


def test_signatures_of_a_compiled_function_are_left_out():
    with pytest.raises(TypeError) as refused:
        mx.expand_dims("no array", 0)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert "1. expand_dims" in str(refused.value)
    assert first_line(refused.value) == "expand_dims(): incompatible function arguments"
