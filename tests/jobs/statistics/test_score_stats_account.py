"""Tests statistics of scoring jobs against an independent account and lm-eval's, for any way to read the records."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.jobs.statistics.score_stats import KL_PERCENTILES
from mlx_bulk.runner.runs.summary import overall_figures
from numpy.typing import NDArray

from ..support.score_runs import document, measured, overall, random_records


def file_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("kind", "reference"),
    [
        pytest.param("text", False, marks=pytest.mark.slow),
        ("text", True),
        ("completion", True),
        pytest.param("messages", False, marks=pytest.mark.slow),
        ("choices", False),
    ],
)
def test_the_bytes_do_not_depend_on_how_the_records_are_read(tmp_path: Path, kind: str, reference: bool):
    records = random_records(kind, 60, ["x", "y", "z", None])
    sizes = [{}, {"per_part": 7}, {"per_batch": 1}, {"per_part": 32, "per_batch": 11}]
    tables = [
        measured(tmp_path / f"{number}", kind, records, group_by="subject", reference=reference, **size)
        for number, size in enumerate(sizes)
    ]
    assert tables[0].num_rows == 5
    assert {file_bytes(table) for table in tables} == {file_bytes(tables[0])}


def test_the_column_types_do_not_depend_on_the_records(tmp_path: Path):
    for kind, reference in (("completion", True), ("choices", False)):
        nothing = measured(tmp_path / f"no {kind}", kind, [], reference=reference)
        assert nothing.schema == measured(tmp_path / kind, kind, random_records(kind, 9, ["x"]), reference=reference).schema


def test_figures_are_the_overall_row_as_json_can_hold_it(tmp_path: Path):
    records = [document([-1, -math.inf], group="x"), document([-2], group="y")]
    found = overall_figures(measured(tmp_path / "run", "text", records, group_by="subject"))
    assert (found["documents"], found["minus_infinity"], found["token_perplexity"]) == (2, 1, None)
    assert "group" not in found


@pytest.mark.parametrize("count", [3, 17, 60])
def test_all_figures_are_those_of_an_independent_account(tmp_path: Path, count: int):
    """By NumPy over flat arrays of tokens, in float64: sums in another order differ by 1e-12 of themselves."""
    records = random_records("completion", count, [None])
    row = overall(tmp_path / "run", "completion", records, reference=True)
    owner = np.repeat(np.arange(count), [record["scored_tokens"] for record in records])

    def flat(name: str) -> NDArray[np.float64]:
        return np.array([x for record in records for x in record[name] if x is not None], np.float32).astype(np.float64)

    logprobs, references, kls, delta_ps = (flat(name) for name in ("token_logprobs", "reference_logprobs", "kls", "delta_ps"))
    means = {
        "mean_nll": -logprobs,
        "kl_mean": kls,
        "delta_p_mean": delta_ps,
        "agreement": flat("agreements"),
        "log_ratio": references - logprobs,
    }
    for name, values in means.items():
        assert row[name] == pytest.approx(values.mean(), rel=1e-11, abs=1e-11)
        assert row[f"{name}_stderr"] == pytest.approx(cluster_robust(values, owner), rel=1e-8)
        if f"{name}_stderr_tokenwise" in row:
            assert row[f"{name}_stderr_tokenwise"] == pytest.approx(values.std(ddof=1) / math.sqrt(len(values)), rel=1e-8)
    assert row["delta_p_rms"] == pytest.approx(np.sqrt(np.mean(delta_ps**2)), rel=1e-11)
    np.testing.assert_allclose([row[name] for name in KL_PERCENTILES], np.percentile(kls, list(KL_PERCENTILES.values())), rtol=1e-11)


def cluster_robust(values: NDArray[np.float64], owner: NDArray[np.intp]) -> float:
    """The error of a mean as econometrics writes it: a regression on a constant with the sandwich of clusters (CR1)."""
    clusters = np.unique(owner)
    x = np.ones((len(values), 1))
    beta = np.linalg.lstsq(x, values, rcond=None)[0]
    residuals = values - x @ beta
    bread = np.linalg.inv(x.T @ x)
    meat = sum(np.outer(s, s) for c in clusters for s in [x[owner == c].T @ residuals[owner == c]])
    return float(np.sqrt(len(clusters) / (len(clusters) - 1) * (bread @ meat @ bread))[0, 0])


@pytest.mark.oracle
def test_figures_are_lm_evals(tmp_path: Path):
    """lm-eval sums in Python's order: 1e-12 of the value."""
    from lm_eval.api.metrics import bits_per_byte, mean, mean_stderr, weighted_perplexity  # pyright: ignore[reportMissingImports]

    documents = [record for record in random_records("text", 60, [None]) if record["scored_tokens"]]
    row = overall(tmp_path / "text", "text", documents)
    by_word = [(record["sum_logprob"], record["words"]) for record in documents]
    by_byte = [(record["sum_logprob"], record["bytes"]) for record in documents]
    assert row["word_perplexity"] == pytest.approx(weighted_perplexity(by_word), rel=1e-12)
    assert row["byte_perplexity"] == pytest.approx(weighted_perplexity(by_byte), rel=1e-12)
    assert row["bits_per_byte"] == pytest.approx(bits_per_byte(by_byte), rel=1e-12)

    rows = [record for record in random_records("choices", 80, [None]) if record["label"] is not None]
    row = overall(tmp_path / "choices", "choices", rows)
    for name, lengths in (("acc", None), ("acc_norm", "choice_chars"), ("acc_bytes", "choice_bytes")):
        norms = [np.array(record[lengths], float) if lengths else 1.0 for record in rows]
        hits = [float(np.argmax(np.array(r["choice_logprobs"]) / n) == r["label"]) for r, n in zip(rows, norms, strict=True)]
        assert row[name] == pytest.approx(mean(hits), rel=1e-12)
        assert row[f"{name}_stderr"] == pytest.approx(mean_stderr(hits), rel=1e-12)
