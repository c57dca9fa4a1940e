"""Tests that mlx-bulk batch, killed and started again, answers each line once."""

import json
from pathlib import Path

import pytest

from .children import Children
from .points import FRAME, REPLACE, ROW, Point

CHAT = "/v1/chat/completions"
DEATHS = [
    Point("row 7 read", ROW, r" 7$"),
    Point("after a frame", FRAME, when="after", nth=3),
    Point("a part beside its name", REPLACE, r"/part-\d+\.arrow$", nth=2),
    Point("answers beside their name", REPLACE, r"/output\.jsonl$"),
    Point("answers there", REPLACE, r"/output\.jsonl$", "after"),
]


def line(row: int) -> str:
    if row == 5:
        return '{"custom_id": "torn"\n'
    if row % 4 == 3:  # two requests of one row
        prompts = {"prompt": [f"Word {row}", f"A longer word {row}"], "max_tokens": 3, "n": 2}
        return json.dumps({"custom_id": f"k{row}", "method": "POST", "url": "/v1/completions", "body": prompts}) + "\n"
    body = {"messages": [{"role": "user", "content": f"Word {row}"}], "max_tokens": 3, "n": 1 + row % 2}
    return json.dumps({"custom_id": f"k{row}", "method": "POST", "url": CHAT, "body": body | ({"stream": True} if row == 9 else {})}) + "\n"


@pytest.mark.slow
def test_each_line_is_answered_once(tmp_path: Path, children: Children):
    (tmp_path / "requests.jsonl").write_text("".join(map(line, range(16))))
    shard = ("--set", "batch.rows_per_shard=4", "--set", "output.fsync_seconds=0")
    words = ("batch", "requests.jsonl", "--model", str(children.model), "--no-supervised", *shard)
    for point in DEATHS:
        ended = children.start(tmp_path, *words, "--to", "answers", points=[point]).wait()
        assert ended.killed, f"survived {point.name}: {ended.stderr}"
    ended = children.start(tmp_path, *words, "--to", "answers").wait()
    assert ended.code == 3, ended.stderr
    assert children.start(tmp_path, *words, "--to", "whole").wait().code == 3
    for name in ("output.jsonl", "errors.jsonl"):
        mine, whole = ([json.loads(one) for one in (tmp_path / to / name).read_text().splitlines()] for to in ("answers", "whole"))
        assert [one["custom_id"] for one in mine] == [one["custom_id"] for one in whole]
        assert [_texts(one) for one in mine] == [_texts(one) for one in whole]
    assert len(mine) == 2
    assert sorted(file.name for file in (tmp_path / "answers").iterdir()) == ["SHA256SUMS", "errors.jsonl", "output.jsonl", "run"]


def _texts(one: dict[str, dict[str, dict[str, list[dict[str, object]]]]]) -> list[object]:
    return [
        (choice["index"], choice.get("message"), choice.get("text"))
        for choice in (one["response"] or {}).get("body", {}).get("choices", [])
    ]
