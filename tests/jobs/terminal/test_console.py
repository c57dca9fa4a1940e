"""Tests that no control character of a message reaches the terminal."""

import logging

import pytest
from mlx_bulk.configs.errors import BulkError
from mlx_bulk.jobs.terminal.console import one_line_errors, set_log

EVIL = "\x1b[2J\u202e\x9b31m\r"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BulkError(f"a block\n  of {EVIL}"), "mlx-bulk: a block\n  of \\x1b[2J\\u202e\\x9b31m\\r\n"),
        (ValueError(f"a line\nof {EVIL}"), "mlx-bulk: ValueError: a line\\nof \\x1b[2J\\u202e\\x9b31m\\r (finished rows are safe; "),
    ],
)
def test_errors_show_what_they_hold(error: Exception, shown: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit), one_line_errors():
        raise error
    assert capsys.readouterr().err.startswith(shown)


def test_the_log_shows_what_it_is_given(capsys: pytest.CaptureFixture[str]):
    set_log("info")
    logging.getLogger("mlx_bulk").info("of %s and %s", EVIL, "東京")
    assert capsys.readouterr().err == "mlx-bulk: of \\x1b[2J\\u202e\\x9b31m\\r and 東京\n"
