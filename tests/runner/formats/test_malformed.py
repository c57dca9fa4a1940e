"""Ten thousand malformed lines of all kinds among good rows. Good rows are read, and errors name the lines of bad ones."""

import json
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan
from mlx_bulk.runner.formats.entry import UnreadableError
from mlx_bulk.runner.formats.line_formats import line_entries, parse_object
from mlx_bulk.runner.formats.source import Source

from ...malformed import BLANK, UNREADABLE, UNUSABLE, good, line_of

FILES, BAD, GOOD = 100, 100, 30  # so many files, each with so many bad and good lines


@pytest.mark.slow
@settings(
    max_examples=FILES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate],
)
@given(
    st.lists(st.sampled_from(sorted(UNREADABLE)), min_size=BAD, max_size=BAD),
    st.integers(0, 1 << 32),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
)
def test_a_bad_line_spoils_itself_alone(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], seed: int, newline: bytes, marked: bool
) -> None:
    random = Random(seed)
    lines: list[bytes | dict[str, object]] = [UNREADABLE[kind](random) for kind in kinds]
    lines += [good(random) for _ in range(GOOD - 1)] + random.choices(BLANK, k=9)
    random.shuffle(lines)
    lines.insert(0, good(random))  # a mark at the start of a file is none of its contents
    path = tmp_path_factory.mktemp("bad") / "rows.jsonl"
    raw = [line if isinstance(line, bytes) else line_of(line, ensure_ascii=random.random() < 0.5) for line in lines]
    path.write_bytes((b"\xef\xbb\xbf" if marked else b"") + newline.join(raw) + newline)
    rows = [(number, line) for number, line in enumerate(lines, 1) if not isinstance(line, bytes) or line.strip()]

    config = DataConfig(path=str(path))
    found = scan(config, path.parent)
    assert (found.rows, found.bad) == (BAD + GOOD, BAD)
    for row, (number, line) in zip(read_rows(found, config, [range(found.rows)]), rows, strict=True):
        if isinstance(line, bytes):
            assert isinstance(row, BadRow), (number, line)
            assert row.line == number
            assert row.message.startswith(f"{path}, line {number}: ")
            assert row.text == line.decode(errors="replace").removesuffix("\r")
            json.dumps(row.text, ensure_ascii=False).encode()
        else:
            assert isinstance(row, Row)
            assert row.columns == line
            assert row.place == f"{path}, line {number}"


@pytest.mark.parametrize("kind", [*UNREADABLE, *UNUSABLE])
def test_each_kind_is_what_it_is_called(tmp_path: Path, kind: str) -> None:
    random = Random(kind)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + b"".join({**UNREADABLE, **UNUSABLE}[kind](random) + b"\n" for _ in range(20)))
    messages: list[str] = []
    for entry in line_entries(Source(str(path), "jsonl")):
        try:
            entry.parse()
        except UnreadableError as error:
            messages.append(str(error))
    assert len(messages) == (0 if kind in UNUSABLE else 20)
    assert all(len(message) < 120 and message.isprintable() for message in messages)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": "cut o', "not valid JSON: Unterminated string starting at column 7"),
        ('{"a": "tab\t"}', "not valid JSON: Invalid control character at column 11"),
        ('{"a": 1,', "not valid JSON: Expecting property name enclosed in double quotes at column 9"),
    ],
)
def test_the_message_names_the_column_once(line: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=f"^{re.escape(message)}"):
        parse_object(line.encode())
