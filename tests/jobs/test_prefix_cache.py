"""What prompts begin with, computed once by the real command, and kept for the next one in ``batch.prefix_cache``."""

import pytest
from mlx_bulk.runner import stems
from mlx_bulk.runner.prefill import Setup
from mlx_bulk.runner.prefix_cache import LEAST, Base
from mlx_bulk.runner.records import Ids

from ..checkpoints import write_checkpoint
from .bench import Bench, Done, Record
from .ran import session

SYSTEM = "Answer in one word, and say nothing else. " * 6
ROWS: list[Record] = [{"q": q} for q in ("2 + 2?", "O", "The king?", "O", "1?")]
PROMPT = {"text": SYSTEM + "{{ q }}"}
ECHO = {"prompt": True}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prefixes that runs compute; those of the probe are shorter."""
    found: list[int] = []
    right = stems.grown

    def counting(setup: Setup, ids: Ids, above: Base | None) -> Base:
        if len(ids) >= LEAST and above is None:
            found.append(len(ids))
        return right(setup, ids, above)

    monkeypatch.setattr(stems, "grown", counting)
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


def test_a_run_may_go_on_with_another_folder(bench: Bench):
    assert bench.run(rows=ROWS, prompt=PROMPT, data={"limit": 2}, batch={"prefix_cache": str(bench.root / "a")}).code == 0
    assert bench.run(rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(bench.root / "b")}).code == 0


def test_a_file_in_its_place_is_said(bench: Bench):
    (bench.root / "kv").write_text("")
    done = bench.run(rows=ROWS, prompt=PROMPT, batch={"prefix_cache": str(bench.root / "kv")})
    assert done.code == 5
    assert done.last_line == (
        f"mlx-bulk: batch.prefix_cache: {bench.root / 'kv'} cannot be used (File exists); expected a folder, or null for none"
    )


def test_what_another_model_has_left_is_not_taken(bench: Bench, computed: list[int]):
    batch, folder = {"prefix_cache": str(bench.root / "kv")}, write_checkpoint(bench.root / "other")
    bench.run(rows=ROWS, prompt=PROMPT, batch=batch)
    assert len(computed) == 1
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("10000.0", "20000.0"))
    Bench(bench.root, folder).run("--output", str(bench.root / "next"), rows=ROWS, prompt=PROMPT, batch=batch)
    assert len(computed) == 2
    assert len(list((bench.root / "kv").iterdir())) == 2
