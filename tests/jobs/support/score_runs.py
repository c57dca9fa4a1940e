"""Makes run directories of scoring jobs by hand: records as of jobs/score, in parts and batches of any size."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.jobs.score.records import CHOICES, text_columns
from mlx_bulk.jobs.statistics.score_stats import score_statistics
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.store.commit_log import Commit, PartFile, append_commit
from mlx_bulk.runner.store.paths import RunPaths

Record = dict[str, Any]

KINDS: dict[str, Record] = {
    "text": {"text": "{{ text }}"},
    "completion": {"completion": "{{ answer }}"},
    "messages": {"messages": "messages"},
    "choices": {"choices": "choices", "label": "label"},
}


def config_of(kind: str, *, group_by: str | None = None, reference: bool = False) -> ScoreConfig:
    """Returns the config of a scoring job of this kind."""
    score = {**KINDS[kind], "group_by": group_by, "reference": "demo" if reference else None}
    sections = {"model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "run"}}
    prompt = {"prompt": {"text": "{{ q }}"}} if kind in ("completion", "choices") else {}
    return ScoreConfig.model_validate({"job": "score", **sections, **prompt, "score": score})


def document(logprobs: Sequence[float], text: str = "a text", leading: int = 1, reference: Sequence[Record] = (), **columns: Any) -> Record:
    """Returns a record whose first ``leading`` tokens are not scored; ``reference`` holds kl, delta_p, agreement, logprob a token."""
    stored = [float(np.float32(x)) for x in logprobs]
    blank: list[None] = [None] * leading
    record: Record = {
        "token_logprobs": blank + stored,
        "token_ids": list(range(leading + len(stored))),
        "sum_logprob": math.fsum(stored) if stored else None,
        "scored_tokens": len(stored),
        "bytes": len(text.encode()),
        "scored_bytes": len(text.encode()) if stored else 0,
        "words": len(re.split(r"\s+", text)),
        "chars": len(text),
        "truncated": False,
        "is_greedy": None,
    }
    for name, column in (("kl", "kls"), ("delta_p", "delta_ps"), ("agreement", "agreements"), ("logprob", "reference_logprobs")):
        record[column] = blank + [token[name] for token in reference]
    return record | columns


def choices(tokens: Sequence[Sequence[float]], given: Sequence[str], label: int | None, **columns: Any) -> Record:
    """Returns a record of choices, from each one's token logprobs and text."""
    sums = [math.fsum(float(np.float32(x)) for x in each) for each in tokens]
    prediction = int(np.argmax(sums))
    record: Record = {
        "choice_token_logprobs": [list(each) for each in tokens],
        "choice_logprobs": sums,
        "choice_tokens": [len(each) for each in tokens],
        "choice_bytes": [len(choice.encode()) for choice in given],
        "choice_chars": [len(choice) for choice in given],
        "prediction": prediction,
        "label": label,
        "correct": None if label is None else prediction == label,
        "truncated": False,
    }
    return record | columns


def write_run(root: Path, config: ScoreConfig, records: Sequence[Record], *, per_part: int = 1000, per_batch: int = 1000) -> Path:
    """Writes a run directory with committed parts of these records."""
    score = config.score
    kinds = CHOICES if score.kind == "choices" else text_columns(score.kind, top=False, stats=False, reference=score.reference is not None)
    group = [("group", pa.large_string())] if score.group_by is not None else []
    schema = pa.schema([("row", pa.int64()), *group, *kinds])
    numbered = [{"row": row, **{name: record.get(name) for name in schema.names if name != "row"}} for row, record in enumerate(records)]
    return write_parts(root, schema, numbered, per_part=per_part, per_batch=per_batch)


def write_parts(root: Path, schema: pa.Schema, records: Sequence[Record], *, per_part: int = 1000, per_batch: int = 1000) -> Path:
    """Writes records of any job as committed parts of the run directory ``root``."""
    paths = RunPaths(root)
    paths.results.mkdir(parents=True, exist_ok=True)
    for shard, start in enumerate(range(0, len(records), per_part)):
        part = records[start : start + per_part]
        with pa.ipc.new_file(str(paths.results_part(shard, 1)), schema) as sink:
            for at in range(0, len(part), per_batch):
                sink.write_batch(pa.RecordBatch.from_pylist(list(part[at : at + per_batch]), schema))
        results = paths.results_part(shard, 1)
        append_commit(paths, Commit.of(shard, 1, len(part), (len(part), 0), PartFile.at(results, sha256(results)), None))
    return root


def measured(
    root: Path, kind: str, records: list[Record], *, group_by: str | None = None, reference: bool = False, **sizes: int
) -> pa.Table:
    """Statistics of a run directory with these records."""
    config = config_of(kind, group_by=group_by, reference=reference)
    return score_statistics(write_run(root, config, records, **sizes), config, "bos", False, 512)


def overall(root: Path, kind: str, records: list[Record], *, reference: bool = False) -> Record:
    """Returns the statistics' row over all of these records."""
    return measured(root, kind, records, reference=reference).to_pylist()[0]


def compared(kl: float, delta_p: float, agreement: bool, logprob: float) -> Record:
    """Returns a token's comparison with the reference model."""
    return {"kl": kl, "delta_p": delta_p, "agreement": agreement, "logprob": logprob}


def random_records(kind: str, count: int, groups: list[str | None]) -> list[Record]:
    """Draws records with every oddity: nothing scored, truncated, probability 0, float64 sums that depend on their order."""
    rng = np.random.default_rng(count)
    return [_random(kind, rng) | {"group": groups[rng.integers(len(groups))]} for _ in range(count)]


def _random(kind: str, rng: np.random.Generator) -> Record:
    def logprobs(least: int) -> list[float]:
        return (-rng.exponential(10.0 ** rng.integers(-6, 3), rng.integers(least, 30))).tolist()

    if kind == "choices":
        given = ["é" * int(rng.integers(1, 9)) + "a" * int(rng.integers(0, 9)) for _ in range(rng.integers(1, 6))]
        label = int(rng.integers(len(given))) if rng.random() < 0.8 else None
        return choices([logprobs(1) for _ in given], given, label, truncated=bool(rng.random() < 0.1))
    tokens = logprobs(0)
    pairs = [compared(float(rng.exponential()), float(rng.normal()), bool(rng.integers(2)), -float(rng.exponential(3))) for _ in tokens]
    greedy = bool(rng.integers(2)) if tokens else None
    return document(tokens, "some words " * len(tokens), int(rng.integers(0, 3)), pairs, is_greedy=greedy)
