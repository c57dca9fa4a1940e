"""Tests statistics of completions: closed forms on records written by hand, through the real writer."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mlx_bulk.jobs.statistics.completion_stats import completion_statistics
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.arrow_builder import LEADING_NULL
from mlx_bulk.runner.store.writer import Writer

FLOATS = pa.list_(pa.float32())
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("sample", pa.int32()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("logprobs", FLOATS),
        ("cumulative_logprob", pa.float64()),
        pa.field("prompt_logprobs", FLOATS, metadata=LEADING_NULL),
    ]
)


def record(prompt: list[float], completion: list[float], finish: str = "stop") -> dict[str, Any]:
    return {
        "finish_reason": finish,
        "prompt_tokens": len(prompt) + 1,
        "completion_tokens": len(completion),
        "logprobs": np.array(completion, np.float32),
        "cumulative_logprob": math.fsum(np.array(completion, np.float32).astype(np.float64)),
        "prompt_logprobs": np.array(prompt, np.float32),
    }


def written(folder: Path, rows: list[list[dict[str, Any]]], schema: pa.Schema = SCHEMA) -> dict[str, Any]:
    """The statistics of a run whose rows have these records, a context of 10 and a max_tokens of 4."""
    with RunDir.open(folder) as run:
        run.bind({"config": {}, "identity": {}, "inputs": {"limit": None, "sources": []}})
        writer = Writer(run, run.identity, schema, Layout(len(rows), 2), run.recover(Layout(len(rows), 2), schema), 5.0)
        for row, records in enumerate(rows):
            writer.admit(row, len(records))
            for sample, one in enumerate(records):
                writer.add(row, sample, one)
        writer.finish()
        [found] = completion_statistics(folder, context=10, max_tokens=4).to_pylist()
        return found


def test_a_prompt_counts_once_however_many_samples_it_has(tmp_path: Path):
    found = written(tmp_path / "run", [[record([-1.0, -2.0], [-0.5])] * 3, [record([-3.0], [-0.25, -0.25])]])
    assert (found["rows"], found["records"]) == (2, 4)
    assert (found["prompt_tokens"], found["prompt_scored"], found["prompt_sum_logprob"]) == (3 + 2, 3, -6.0)
    assert (found["completion_tokens"], found["sum_logprob"]) == (5, -2.0)
    assert math.isclose(found["prompt_perplexity"], math.exp(2.0), rel_tol=1e-12)
    assert math.isclose(found["completion_perplexity"], math.exp(0.4), rel_tol=1e-12)


def test_each_prompt_of_a_row_counts_once(tmp_path: Path):
    """A line of a Batch file may have several prompts, also the same one twice; each has as many samples."""
    completion = record([], [-0.5])

    def of(prompt: list[float], samples: int, **said: Any) -> list[dict[str, Any]]:
        return [{**completion, **record(prompt, [-0.5]), "request": json.dumps({"url": "/v1/completions", **said})}] * samples

    several, twice = [-1.0, -2.0], [-3.0]
    rows = [
        [*of(several, 2, prompts=3, n=2), *of(twice, 4, prompts=3, n=2)],
        of(twice, 2, prompts=1, prompt_logprobs=1),
        of(twice, 1, echo=True),
    ]
    found = written(tmp_path / "run", rows, SCHEMA.append(pa.field("request", pa.large_string())))
    assert (found["rows"], found["records"], found["completion_tokens"]) == (3, 9, 9)
    assert (found["prompt_tokens"], found["prompt_scored"], found["prompt_sum_logprob"]) == (3 + 4 * 2, 2 + 4, -3.0 - 4 * 3.0)


def test_a_prompt_whose_neighbour_failed_counts_once(tmp_path: Path):
    """Samples 2 and 3, those of the second prompt, are in errors/."""
    one = {**record([-1.0, -2.0], [-0.5]), "request": json.dumps({"url": "/v1/completions", "prompts": 2, "n": 2})}
    found = written(tmp_path / "run", [[one, one]], SCHEMA.append(pa.field("request", pa.large_string())))
    assert (found["prompt_tokens"], found["prompt_scored"], found["prompt_sum_logprob"]) == (3, 2, -3.0)


def test_ends_are_told_apart_and_clipped_prompts_counted(tmp_path: Path):
    """Prompts of 3 and 8 tokens in a context of 10: the second leaves 2 of the 4 max_tokens."""
    short, long = [-1.0] * 2, [-1.0] * 7
    rows = [[record(short, [-1.0] * 4, "length")], [record(long, [-1.0] * 2, "length")], [record(long, [-1.0], "stop")]]
    found = written(tmp_path / "run", rows)
    assert (found["stopped"], found["at_max_tokens"], found["at_context"], found["clipped"]) == (1, 1, 1, 2)


def test_minus_infinity_stays_and_is_counted(tmp_path: Path):
    found = written(tmp_path / "run", [[record([-math.inf, -1.0], [-1.0])], [record([-1.0], [-math.inf])]])
    assert found["minus_infinity"] == 2
    assert found["sum_logprob"] == -math.inf
    assert found["completion_perplexity"] == math.inf


def test_nothing_done_is_null_and_not_one(tmp_path: Path):
    found = written(tmp_path / "run", [])
    assert (found["records"], found["sum_logprob"], found["completion_perplexity"], found["prompt_perplexity"]) == (0, 0.0, None, None)
