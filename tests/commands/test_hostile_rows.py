"""Tests rows that try to write on the terminal, fake a line of the log, or get into a path. The command prints only its own text.

And the real command over hundreds of malformed lines among good rows.
"""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.runs.failures import error_reasons

from ..jobs.support.bench import Bench, Record
from ..malformed import UNREADABLE, UNUSABLE, good, line_of

EVIL = "\x1b[2J\x1b]0;owned\x07\nmlx-bulk: complete: all is well\r\u202egnp.exe\u2066\u0085\u2028\x9b31m../../../evil\x00"
ALLOWED = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff]*")


def assert_own_words(*texts: str) -> None:
    """Nothing that a terminal obeys, and no line that a row has written."""
    for text in texts:
        assert ALLOWED.fullmatch(text), ascii(text)
        assert [line for line in text.splitlines() if line.startswith("mlx-bulk: complete: all")] == []


def assert_within(bench: Bench, before: set[Path]) -> None:
    """No file has come to be but in the run's folder, and none there has a row's words in its name."""
    new = set(bench.root.parent.rglob("*")) - before
    assert all(path.is_relative_to(bench.root) for path in new)
    assert [path for path in new if "evil" in path.name or "owned" in path.name] == []


ROWS: list[Record] = [{"id": f"{n}{EVIL}", "q": f"{EVIL} {n}", "group": EVIL * ((n + 1) % 2), "turns": [{"role": EVIL}]} for n in range(4)]
RAISING = "{% if messages[0].content %}{{ raise_exception(messages[0].content) }}{% endif %}"
RUNS: dict[str, dict[str, Any]] = {
    "keys": {"data": {"key": "id"}, "prompt": {"text": "{{ q }}{{ nothing if q }}"}},
    "a first failure": {"data": {"key": "id"}, "prompt": {"text": "{{ q.nothing }}"}, "on_error": "fail"},
    "a chat template's words": {"prompt": {"user": "{{ q }}", "chat_template": RAISING}},
    "a chat template's words at once": {"prompt": {"user": "{{ q }}", "chat_template": RAISING}, "on_error": "fail"},
    "messages": {"prompt": {"messages": "turns"}},
    "settings of rows": {"sampling": {"columns": {"max_tokens": "group"}}},
    "seeds of rows": {"sampling": {"columns": {"seed": "id"}}, "on_error": "fail"},
    "a filter's error": {"prompt": {"text": "{{ q | int | round(q) }}"}},
    "all at debug": {"prompt": {"user": "{{ q }}", "chat_template": RAISING}, "on_error": "fail"},
}


SAID = {
    "settings of rows",
    "a first failure",
    "a chat template's words",
    "a chat template's words at once",
    "seeds of rows",
    "all at debug",
}


@pytest.mark.parametrize("name", RUNS)
def test_rows_do_not_get_to_the_terminal(bench: Bench, name: str):
    before = set(bench.root.parent.rglob("*"))
    options = ("--log-level", "debug") if "debug" in name else ()
    done = bench.run(*options, rows=ROWS, **RUNS[name])
    assert done.code in (3, 5), done.stderr
    assert_own_words(done.stderr, done.stdout, *error_reasons(done.output))
    assert ("owned" in done.stderr) == (name in SAID)
    assert_within(bench, before)
    assert all(error["input"] for error in done.errors)


def test_duplicate_keys_and_columns_are_shown_on_one_line(bench: Bench):
    done = bench.run(rows=[*ROWS, ROWS[1]], data={"key": "id"})
    assert done.code == 5
    assert_own_words(done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert "owned" in done.stderr
    done = bench.run(rows=[{EVIL: 1, **{f"{n}{EVIL}": 1 for n in range(60)}}], prompt={"text": "{{ q }}"})
    assert done.code == 5
    assert_own_words(done.stderr)
    assert "… and 31 more" in done.last_line


def test_changed_columns_are_shown_on_lines_of_ours(bench: Bench):
    first: Record = {"q": "a", EVIL: 1}
    assert bench.run(rows=[first], data={"keep": "all"}).code == 0
    done = bench.run(rows=[first, {"q": "b", f"b{EVIL}": 1}], data={"keep": "all"})
    assert done.code == 4
    assert_own_words(done.stderr)
    assert "owned" in done.stderr


@pytest.mark.parametrize("header", [f'a,"{EVIL}"', f'"{EVIL}","{EVIL}"'.replace("\0", ""), "\x1b[31m,\xff"])
def test_a_csv_header_is_shown_on_one_line(bench: Bench, header: str):
    path = bench.root / "rows.csv"
    path.write_bytes(header.encode("utf-8", "surrogatepass") + b"\n1,2\n")
    done = bench.run(data={"path": str(path)}, prompt={"text": "{{ q }}"})
    assert done.code == 5
    assert_own_words(done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_groups_and_documents_are_shown_on_lines_of_ours(bench: Bench, model: Path):
    for name in ("a", "b"):
        done = bench.score("--output", str(bench.root / name), rows=ROWS, score={"text": f"{name} {{{{ q }}}}", "group_by": "group"})
        assert done.code == 0
        assert_own_words(done.stderr)
    shown = CliRunner().invoke(cli, ["compare", str(bench.root / "a"), str(bench.root / "b")])
    assert shown.exit_code == 0
    assert_own_words(shown.output)


# --------------------------------------------------------------------------------------------------- malformed lines


def test_hundreds_of_malformed_lines_cost_only_themselves(bench: Bench):
    random = Random(4)
    lines: list[tuple[str, bytes]] = [(kind, make(random)) for kind, make in (UNREADABLE | UNUSABLE).items() for _ in range(15)]
    lines += [("good", line_of(good(random))) for _ in range(60)]
    random.shuffle(lines)
    lines.insert(0, ("good", line_of(good(random))))
    path = bench.root / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for _, line in lines))
    done = bench.run(data={"path": str(path)}, prompt={"text": "{{ q }}"}, sampling={"max_tokens": 1}, batch={"rows_per_shard": 64})
    assert done.code == 3
    assert_own_words(done.stderr, done.stdout)
    wanted = {row for row, (kind, _) in enumerate(lines) if kind == "good"}
    assert {record["row"] for record in done.records} == wanted
    assert len(done.records) == len(wanted) == 61
    failed = {error["row"]: error for error in done.errors}
    assert failed.keys() == set(range(len(lines))) - wanted
    for row, (kind, _) in enumerate(lines):
        if row in failed:
            assert f"rows.jsonl, line {row + 1}" in failed[row]["message"]
            assert failed[row]["stage"] == ("template" if kind in UNUSABLE else "read"), (kind, failed[row])
    json.dumps([error["message"] for error in done.errors])
