"""Tests statistics and reports of arbitrary records: all are computed and drawn."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.jobs import ROW_JOBS
from mlx_bulk.configs.schema import JobConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.report import page, run_page
from mlx_bulk.jobs.report.page import render_page
from mlx_bulk.runner.files.checked_json import write_document
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.pipeline.job import Job, Parts
from mlx_bulk.runner.store.paths import RunPaths

from ...runner.support.small_tokenizers import demo
from ..support.bench import Bench, Record
from ..support.chart_stand_in import chart_names
from ..support.run_states import RUN
from ..support.score_runs import write_parts
from .test_report import Reader, reported

TOKENS: Record = {"top": 2, "stats": True}
JOBS: dict[str, Record] = {
    "text": {"job": "score", "score": {"text": "{{ q }}", "group_by": "q"}, "logprobs": TOKENS},
    "completion": {"job": "score", "prompt": {"text": "{{ q }}"}, "score": {"completion": "{{ q }}", "reference": "demo"}},
    "choices": {"job": "score", "prompt": {"text": "{{ q }}"}, "score": {"choices": "q", "label": "q"}},
    "generate": {"job": "generate", "prompt": {"text": "{{ q }}"}, "logprobs": {**TOKENS, "prompt": True}},
    "rollout": {"job": "rollout", "prompt": {"text": "{{ q }}"}, "rewards": [{"fn": "length"}, {"fn": "length", "name": "twice"}]},
}
QUICK = ("text", "generate", "rollout")
MODEL = Checkpoint(Path("model"), None, {})
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LOGPROBS = st.one_of(st.floats(-40, 0, width=32), st.sampled_from([float("-inf"), 0.0]))
SUMS = st.one_of(st.floats(-1e6, 0), st.just(float("-inf")))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(0, 1),
    pa.int32(): st.integers(0, 400),
    pa.int64(): st.integers(0, 400),
    pa.uint64(): st.integers(0, 2**53),
    pa.float32(): LOGPROBS,
    pa.float64(): st.floats(0, 2),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
}
NULLABLE = ("stop_reason", "label", "correct", "reward", "rewards", "reward_errors", "advantage", "group", "is_greedy")
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "finish_reason": st.sampled_from(["stop", "length"]),
    "cumulative_logprob": SUMS,
    "sum_logprob": SUMS,
    "label": st.integers(0, 2),
    "prediction": st.integers(0, 2),
    "reward": st.floats(-(2.0**127), 2.0**127, width=32),
}


def job_of(name: str) -> tuple[JobConfig, Job]:
    sections = {"model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "output": {"path": "run"}}
    config = ROW_JOBS[JOBS[name]["job"]].model_validate(sections | JOBS[name])
    kept = pa.struct([("q", pa.string())])
    return config, KINDS[config.job](Parts(config, ["q"], kept, demo(), 512, 512, demo().size, "llama", demo().eos, MODEL))


@st.composite
def records_of(draw: st.DrawFn, schema: pa.Schema) -> list[Record]:
    return [draw(record_of(schema, row)) for row in range(draw(st.integers(1, 4)))]


@st.composite
def record_of(draw: st.DrawFn, schema: pa.Schema, row: int) -> Record:
    """A record whose lists of tokens are of one length, often none. All figures of a token that has none are null."""
    there = {begin: draw(st.lists(st.booleans(), max_size=10)) for begin in ("prompt_", "")}
    there["choice_"] = [True] * draw(st.integers(1, 3))
    if "token_ids" not in schema.names:
        there[""] = [True] * len(there[""])
    counted = {"row": row, "round": 0, "sample": 0, "scored_tokens": sum(there[""]), "completion_tokens": len(there[""])}
    record: Record = {name: value for name, value in counted.items() if name in schema.names}
    for field in schema:
        if field.name not in record:
            begin = next(begin for begin in ("prompt_", "choice_", "") if field.name.startswith(begin))
            record[field.name] = draw(value_of(field, there[begin]))
    if "sum_logprob" in record and not record["scored_tokens"]:
        record["sum_logprob"] = None
    return record


def value_of(field: pa.Field, there: list[bool]) -> st.SearchStrategy[Any]:
    if pa.types.is_list(field.type):
        always = field.name.endswith(("_ids", "offset", "scored", "mask")) and not field.name.endswith("top_ids")
        return st.tuples(*[items_of(field) if here or always else st.none() for here in there]).map(list)
    if pa.types.is_struct(field.type):
        values: st.SearchStrategy[Any] = st.fixed_dictionaries({child.name: st.none() | VALUES[child.type] for child in field.type})
    else:
        values = COLUMNS.get(field.name, VALUES[field.type])
    return st.none() | values if field.name in NULLABLE else values


def items_of(field: pa.Field) -> st.SearchStrategy[Any]:
    inner = field.type.value_type
    return st.lists(VALUES[inner.value_type], min_size=2, max_size=2) if pa.types.is_list(inner) else VALUES[inner]


def write_run(folder: Path, config: JobConfig, job: Job, records: list[Record]) -> None:
    """Writes a complete run of these records."""
    write_parts(folder, job.schema, records, per_batch=2)
    table = job.statistics(folder)
    with pa.ipc.new_file(str(folder / "stats.arrow"), table.schema) as writer:
        writer.write_table(table)
    job.closing(table)
    described = config.model_dump(mode="json")
    write_document(RunPaths(folder).run, RUN | {"schema_version": 2, "config": described})
    write_document(RunPaths(folder).summary, {"stats_sha256": sha256(folder / "stats.arrow")})


def page_of(name: str, drawn: st.DataObject, patched: pytest.MonkeyPatch) -> None:
    """Draws the report of a run with any records, and looks whether it shows all of them."""
    config, job = job_of(name)
    records = drawn.draw(records_of(job.schema))
    patched.setattr(run_page, "tokenizer_of", lambda *_: demo())
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        write_run(run, config, job, records)
        shown = Reader(render_page(run_page.run_page(run)).decode()).samples["records"]
    assert [sample["name"].split(" · ")[0] for sample in shown] == [f"row {row}" for row in range(len(records))]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in JOBS])
@settings(max_examples=5)
@given(drawn=st.data())
def test_a_report_is_drawn_of_any_records(name: str, drawn: st.DataObject):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page, "drawn", chart_names)
        page_of(name, drawn, patched)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
@settings(max_examples=8)
@given(drawn=st.data())
def test_charts_are_drawn_of_any_records(name: str, drawn: st.DataObject):
    with pytest.MonkeyPatch.context() as patched:
        page_of(name, drawn, patched)


@pytest.mark.usefixtures("no_charts")
def test_an_empty_document_without_a_prefix_token(bench: Bench):
    done = bench.score(rows=[{"t": ""}, {"t": "a b c d e"}], score={"text": "{{ t }}", "prefix": "none"})
    empty, other = reported(done.output).samples["records"]
    assert empty["parts"] == [{"name": "text", "tokens": []}]
    assert "".join(token[0] for token in other["parts"][0]["tokens"]) == "a b c d e"
