"""Computes the bytes that a run's results and errors will take, from sample records of the size that real ones will have.

Arrow's files are not compressed. So only the sizes of a record's texts and lists count, not their contents. Nothing is written.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.schema import JobConfig
from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from ..core.arrays import Ids
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Failure, Generated, Outcome, Pooled, Scored
from ..core.policy import Policy
from ..core.requests import AnyRequest, PoolRequest, Request, Row, Sample, ScoreRequest
from ..layers.state_scores import no_scores
from ..pipeline.job import Grouping, Job, Ratings
from ..scoring.partial_scores import NO_DIVERGENCE
from ..store.arrow_builder import record_batch, record_bytes
from ..store.part_file import ERRORS_SCHEMA
from .forecast import CompletionLength
from .survey import Survey, request_tokens

SAMPLES = 4  # of a row; further samples are as large
BATCH = 1024  # records, as in a part
FOOTER_BYTES = 256  # of a part's own metadata
KEPT_IDS = 32  # a guess of how many ids top_p or min_p leave to draw from

_POLICY = Policy(0, "0" * 64, None)


def disk_bytes(config: JobConfig, job: Job, survey: Survey, length: CompletionLength) -> int:
    """Returns the bytes of results/ and errors/ at the end, if completions have as many tokens as ``length`` says."""
    records, weights = _records(job, survey.sample_rows, config.reference is not None, length)
    shards = -(-survey.rows // config.batch.rows_per_shard)
    if not records:
        return round(_bytes(job.schema, 0.0, 0, shards) + _error_bytes(survey, shards))
    count = round(survey.factor * len(survey.lengths) * sum(weights) / len(weights))
    each = _record_bytes(job.schema, records) + _excess_bytes(survey, records)
    return round(_bytes(job.schema, each, count, shards) + _error_bytes(survey, shards))


def _excess_bytes(survey: Survey, records: Sequence[dict[str, Any]]) -> float:
    """Returns how many bytes an average record of all rows has more than one of the sample rows, because its row has more tokens."""
    tokens = {row.position: request_tokens(request) for row, request in survey.sample_rows}
    x = np.array([tokens[record["row"]] for record in records], np.float64)
    y = np.array([record_bytes(record) for record in records], np.float64)
    if not x.var():
        return 0.0
    slope = float(np.cov(x, y, bias=True)[0, 1] / x.var())
    return slope * (float(np.mean(survey.lengths)) - float(x.mean()))


def _records(
    job: Job, rows: Sequence[tuple[Row, AnyRequest]], compared: bool, length: CompletionLength
) -> tuple[list[dict[str, Any]], list[int]]:
    """Returns records of the sample ``rows``, and how many records each row has in the run."""
    records: list[dict[str, Any]] = []
    for row, request in rows:
        if isinstance(request, PoolRequest) and job.pooling is not None:
            vectors = np.zeros((len(request.inputs), job.pooling.dimensions), np.float32)
            records.append(job.record(row, request, Pooled(row.position, vectors)) | {"row": row.position})
            continue
        assert not isinstance(request, PoolRequest), "a job without pooling has none"
        outcomes = list(_outcomes(request, job.wanted, compared, length))
        if job.grouping is not None:
            records += _group(job, job.grouping, row, request, outcomes)
            continue
        for outcome in outcomes:
            assert not isinstance(outcome, Failure)
            identity = {"row": row.position, "sample": outcome.index} if "sample" in job.schema.names else {"row": row.position}
            records.append(job.record(row, request, outcome) | identity)
    one = job.grouping is not None and job.samples == 1
    return records, [1 if one else len(request.samples) for _, request in rows]


def _group(job: Job, grouping: Grouping, row: Row, request: AnyRequest, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Returns a group's records. Its rewards differ, because a group of equal rewards may be dropped."""
    samples = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
    rewards: list[float | None] = [float(number % 2) for number in range(len(samples))]
    names = [field.name for field in job.schema.field("rewards").type] if "rewards" in job.schema.names else []
    ratings = Ratings(dict.fromkeys(names, rewards), {name: [None] * len(samples) for name in names})
    assert isinstance(request, Request)
    records = grouping.group(row, request, samples, ratings, 0)
    if isinstance(records, Failure):
        return []
    return [record | {"row": row.position, "sample": number} for number, record in enumerate(records)]


def _outcomes(request: Request | ScoreRequest, wanted: LogprobOptions, compared: bool, length: CompletionLength) -> Iterator[Outcome]:
    """Yields outcomes of the sizes that a request's own will have. Completions repeat the prompt's ids, whose text has a typical length."""
    if isinstance(request, ScoreRequest):
        sizes = [len(passage.positions) for passage in request.passages]
        against = tuple(_divergence(n) for n in sizes) if compared else None
        yield Scored(request.row, tuple(_scores(wanted, n) for n in sizes), against)
        return
    echo = _scores(wanted, len(request.prompt.ids) - 1) if wanted.echo else None
    for sample in request.work.samples if wanted.tempered else request.work.samples[:SAMPLES]:  # a group is recorded whole
        ids = _completion(request, sample, length)
        scores = _scores(wanted, len(ids))
        yield Generated(
            request.row,
            sample,
            ids,
            scores,
            scores.logprobs,
            "length",
            None,
            echo,
            tempered_logprobs=scores.logprobs if wanted.tempered else None,
            kept_ids=[ids[: request.work.sampling.top_k or KEPT_IDS]] * len(ids) if wanted.kept else None,
            ref_logprobs=scores.logprobs if wanted.reference else None,
            ref_tempered_logprobs=scores.logprobs if wanted.reference else None,
            policy=_POLICY if wanted.tempered else None,
        )


def _completion(request: Request, sample: Sample, length: CompletionLength) -> Ids:
    ids = request.prompt.ids[len(request.prompt.ids) // 2 :]  # a chat's end is more like a completion than its beginning is
    return np.resize(ids, max(1, length(request, sample)))


def _scores(wanted: LogprobOptions, n: int) -> Scores:
    return _with_tokens(no_scores(wanted), n)


def _divergence(n: int) -> Divergence:
    return _with_tokens(NO_DIVERGENCE, n)


def _with_tokens(empty: Any, n: int) -> Any:
    """Returns the figures of ``empty`` for ``n`` tokens, all 0."""
    parts: dict[str, Any] = {name: getattr(empty, name) for name in empty.__slots__}
    return type(empty)(**{name: None if part is None else np.zeros((n, *part.shape[1:]), part.dtype) for name, part in parts.items()})


def _error_bytes(survey: Survey, shards: int) -> float:
    if not survey.failures:
        return 0.0
    columns = [{name: getattr(failure, name) for name in ERRORS_SCHEMA.names} for failure in survey.failures]
    bad = round(survey.factor * survey.bad_rows)
    return _bytes(ERRORS_SCHEMA, _record_bytes(ERRORS_SCHEMA, columns), bad, min(shards, bad))


def _bytes(schema: pa.Schema, each: float, records: int, parts: int) -> float:
    """Returns the bytes of ``parts`` files with ``records`` records of ``each`` bytes, with the headers of files and batches."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_file(sink, schema):
        pass
    batches = parts * -(-records // (BATCH * parts)) if parts else 0
    return parts * (sink.size() + FOOTER_BYTES) + batches * _batch_bytes(schema, []) + records * each


def _record_bytes(schema: pa.Schema, records: Sequence[dict[str, Any]]) -> float:
    """Returns the mean bytes of a record, without the header of its batch."""
    parts = [records[start : start + BATCH] for start in range(0, len(records), BATCH)]
    return (sum(_batch_bytes(schema, part) for part in parts) - len(parts) * _batch_bytes(schema, [])) / len(records)


def _batch_bytes(schema: pa.Schema, records: Sequence[dict[str, Any]]) -> int:
    return pa.ipc.get_record_batch_size(record_batch(schema, records))
