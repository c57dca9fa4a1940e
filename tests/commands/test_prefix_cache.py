"""Tests shared prefixes in the real command: computed once, and kept for later runs in ``batch.prefix_cache``."""

import json
from itertools import takewhile
from typing import Any

import pytest
from mlx_bulk.runner.core.arrays import Ids
from mlx_bulk.runner.engine import prefix_kv
from mlx_bulk.runner.engine.prefill import ByCalls
from mlx_bulk.runner.engine.prefix_disk_cache import LEAST, ComputedPrefix
from mlx_bulk.runner.engine.setup import Setup

from ..checkpoints import write_checkpoint
from ..jobs.support.bench import Bench, Done, Record
from ..jobs.support.finished_runs import session

SYSTEM = "Answer in one word, and say nothing else. " * 6
ROWS: list[Record] = [{"q": q} for q in ("2 + 2?", "O", "The king?", "O", "1?")]
PROMPT = {"text": SYSTEM + "{{ q }}"}
ECHO = {"prompt": True}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prefixes that runs compute; those of the probe are shorter."""
    found: list[int] = []
    right = prefix_kv.prefix_by_calls

    def counting(setup: Setup, ids: Ids, above: ComputedPrefix | None) -> ByCalls[ComputedPrefix]:
        if len(ids) >= LEAST and above is None:
            found.append(len(ids))
        return right(setup, ids, above)

    monkeypatch.setattr(prefix_kv, "prefix_by_calls", counting)
    return found


def records(done: Done) -> list[tuple[object, ...]]:
    return [(r["completion_ids"], r["logprobs"], r["prompt_logprobs"]) for r in done.records]


def test_the_next_run_computes_no_prefix_and_says_the_same(bench: Bench, computed: list[int]):
    folder, out = bench.root / "kv" / "mine", str(bench.root / "next")
    batch = {"prefix_cache": str(folder)}
    first = bench.run(rows=ROWS, prompt=PROMPT, logprobs=ECHO, batch=batch)
    assert len(computed) == 1
    assert session(first)["probe"]["prefixes"] == {"shared": True, "reason": ""}
    kept = sorted(folder.iterdir())
    assert [path.suffix for path in kept] == [".safetensors"]
    computed.clear()
    again = bench.run("--output", out, rows=ROWS, prompt=PROMPT, logprobs=ECHO, batch=batch)
    assert computed == []
    assert records(again) == records(first)
    assert sorted(folder.iterdir()) == kept
    plain = bench.run("--output", out, "--overwrite", rows=ROWS, prompt=PROMPT, logprobs=ECHO)
    assert records(plain) == records(first)
    assert session(first)["batch"]["prefix_cache"] == str(folder)


def noted(done: Done) -> dict[str, Any]:
    """The last session's figures in summary.json."""
    return json.loads((done.output / "summary.json").read_text())["session"]


def alike(done: Done) -> int:
    """Tokens that all prompts begin with."""
    return len([*takewhile(lambda ids: len(set(ids)) == 1, zip(*(r["prompt_ids"] for r in done.records), strict=False))])


def fed(done: Done, shared: int, times: int) -> int:
    """Tokens of all prompts less their last ones, where ``shared`` of each are fed so many ``times`` in all."""
    return sum(r["prompt_tokens"] - 1 - shared for r in done.records) + times * shared


def test_the_last_lines_tell_prefixes_read_kept_and_prefilled(bench: Bench):
    folder = bench.root / "kv"
    first = bench.run(rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(folder)})
    shared = alike(first)
    said = f"batch.prefix_cache: {folder}: prefixes read {{}}, kept {{}} (the longest that prompts share: {shared} tokens)"
    assert said.format(0, 1) in first.stderr
    assert noted(first)["prefilled_tokens"] == fed(first, shared, times=1)
    again = bench.run("--overwrite", rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(folder)})
    assert said.format(1, 0) in again.stderr
    assert noted(again)["prefilled_tokens"] == fed(first, shared, times=0)


def test_a_prefix_too_short_to_keep_is_reported_and_still_shared(bench: Bench):
    folder = bench.root / "kv"
    done = bench.run(rows=ROWS, prompt={"text": SYSTEM[:80] + "{{ q }}"}, batch={"prefix_cache": str(folder)})
    shared = alike(done)
    assert 16 < shared < LEAST
    assert (
        f"batch.prefix_cache: {folder}: prefixes read 0, kept 0 "
        f"(the longest that prompts share: {shared} tokens, and those of fewer than {LEAST} are not kept)"
    ) in done.stderr
    assert list(folder.iterdir()) == []
    assert noted(done)["prefilled_tokens"] == fed(done, shared, times=1)


def test_prompts_that_share_nothing_give_a_line(bench: Bench):
    done = bench.run(rows=ROWS[:3], batch={"prefix_cache": str(bench.root / "kv")})
    assert f"batch.prefix_cache: {bench.root / 'kv'}: prefixes read 0, kept 0 (prompts share none that is worth it)" in done.stderr


def test_a_job_that_keeps_no_prefixes_says_so_and_makes_no_folder(bench: Bench):
    folder = bench.root / "kv"
    done = bench.score(rows=[{"text": "O"}], score={"text": "{{ text }}"}, batch={"prefix_cache": str(folder)})
    assert done.code == 0
    assert f"batch.prefix_cache: {folder} is not used, as only generate jobs keep prefixes" in done.stderr
    assert not folder.exists()


def test_a_run_may_go_on_with_another_folder(bench: Bench):
    assert bench.run(rows=ROWS, prompt=PROMPT, data={"limit": 2}, batch={"prefix_cache": str(bench.root / "a")}).code == 0
    assert bench.run(rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(bench.root / "b")}).code == 0


def test_a_file_in_the_place_of_the_folder_is_reported(bench: Bench):
    (bench.root / "kv").write_text("")
    done = bench.run(rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(bench.root / "kv")})
    assert done.code == 5
    assert done.last_line == (
        f"mlx-bulk: batch.prefix_cache: {bench.root / 'kv'} cannot be used (File exists); expected a folder, or null for none"
    )


@pytest.mark.slow
def test_prefixes_of_another_model_are_not_used(bench: Bench, computed: list[int]):
    batch, folder = {"prefix_cache": str(bench.root / "kv")}, write_checkpoint(bench.root / "other")
    bench.run(rows=ROWS, prompt=PROMPT, batch=batch)
    assert len(computed) == 1
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("10000.0", "20000.0"))
    Bench(bench.root, folder).run("--output", str(bench.root / "next"), rows=ROWS, prompt=PROMPT, batch=batch)
    assert len(computed) == 2
    assert len(list((bench.root / "kv").iterdir())) == 2
