"""Tests statistics of scoring jobs: closed forms, groups, every normalization, the reference."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.jobs.statistics.score_stats import score_statistics

from ..support.score_runs import Record, choices, compared, config_of, document, measured, overall, random_records, write_run

LN2 = math.log(2)


# ----------------------------------------------------------------------------------------------------------- documents


def test_a_model_that_halves_has_perplexity_two(tmp_path: Path):
    """Three tokens of probability 1/2, in two documents with 4 and 2 bytes, 2 and 1 words; float32 holds ln 2 to 3e-8."""
    row = overall(tmp_path / "run", "text", [document([-LN2, -LN2], "a bc"), document([-LN2], "é")])
    assert (row["documents"], row["scored_tokens"], row["words"], row["bytes"]) == (2, 3, 3, 6)
    assert row["sum_logprob"] == 3 * float(np.float32(-LN2))
    assert row["mean_nll"] == pytest.approx(LN2, rel=1e-7)
    assert row["token_perplexity"] == pytest.approx(2, rel=1e-7)
    assert row["word_perplexity"] == pytest.approx(2, rel=1e-7)
    assert row["byte_perplexity"] == pytest.approx(math.sqrt(2), rel=1e-7)
    assert row["bits_per_byte"] == pytest.approx(0.5, rel=1e-7)
    assert row["mean_nll_stderr"] == row["token_perplexity_stderr"] == row["mean_nll_stderr_tokenwise"] == 0.0
    assert (row["first_token_scored"], row["prefix"], row["bos_every_window"]) == (True, "bos", False)


def test_errors_by_hand_are_clustered_and_tokenwise(tmp_path: Path):
    """Means -1.5; residuals of the documents ±0.5; of the tokens 0.5, 0.5, -2.5, 1.5: 9 in all, over 3 and over 4."""
    row = overall(tmp_path / "run", "text", [document([-1]), document([-1, -4, 0])])
    assert row["mean_nll"] == 1.5
    assert row["mean_nll_stderr"] == 0.25
    assert row["token_perplexity_stderr"] == pytest.approx(0.25 * math.exp(1.5), rel=1e-15)
    assert row["mean_nll_stderr_tokenwise"] == pytest.approx(math.sqrt(9 / 3 / 4), rel=1e-15)


def test_a_document_with_nothing_to_score_counts_as_such_and_as_nothing_else(tmp_path: Path):
    full = [document([-1]), document([-1, -4, 0])]
    row = overall(tmp_path / "a", "text", [full[0], document([], ""), document([], "", leading=0), full[1]])
    assert (row["documents"], row["nothing_to_score"]) == (4, 2)
    alone = overall(tmp_path / "b", "text", full)
    assert {name for name in row if row[name] != alone[name]} == {"documents", "nothing_to_score"}


@pytest.mark.parametrize("records", [[], [document([], "", leading=0)]])
def test_nothing_at_all_to_score_is_null_and_not_zero(tmp_path: Path, records: list[Record]):
    tokens = [record | {"is_greedy": None} for record in records]
    row = overall(tmp_path / "run", "completion", tokens, reference=True)
    counts = ("documents", "nothing_to_score", "truncated", "minus_infinity", "scored_tokens", "words", "bytes", "greedy")
    assert [row[name] for name in counts] == [len(records), len(records), 0, 0, 0, 0, 0, 0]
    known = {*counts, "of", "group", "prefix", "bos_every_window", "context", "first_token_scored"}
    assert {name for name, value in row.items() if value is not None} == known


def test_one_document_has_a_tokenwise_error_alone(tmp_path: Path):
    row = overall(tmp_path / "run", "text", [document([-1, -3])])
    assert (row["mean_nll_stderr"], row["token_perplexity_stderr"]) == (None, None)
    assert row["mean_nll_stderr_tokenwise"] == pytest.approx(1.0, rel=1e-15)


def test_a_token_without_a_chance_is_counted_and_makes_perplexity_infinite(tmp_path: Path):
    row = overall(tmp_path / "run", "text", [document([-1, -math.inf]), document([-2])])
    assert row["minus_infinity"] == 1
    assert row["sum_logprob"] == -math.inf
    for name in ("mean_nll", "token_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert row[name] == math.inf
    for name in ("mean_nll_stderr", "token_perplexity_stderr", "mean_nll_stderr_tokenwise"):
        assert row[name] is None


def test_bytes_before_the_first_scored_token_do_not_count_and_are_marked(tmp_path: Path):
    whole, begun = document([-8 * LN2], "ab"), document([-8 * LN2], "abc", scored_bytes=2)
    row = overall(tmp_path / "a", "text", [whole, begun])
    assert (row["bytes"], row["first_token_scored"]) == (4, False)
    assert row["bits_per_byte"] == pytest.approx(4, rel=1e-7)
    assert overall(tmp_path / "b", "text", [document([], "a")])["first_token_scored"] is False
    cut = document([-1], "abc", scored_bytes=2, truncated=True)
    row = overall(tmp_path / "c", "messages", [whole, cut])
    assert (row["first_token_scored"], row["truncated"]) == (True, 1)


def test_completions_tell_how_many_the_model_would_have_chosen(tmp_path: Path):
    records = [document([-1], is_greedy=greedy) for greedy in (True, False, True, True)] + [document([], "", is_greedy=None)]
    row = overall(tmp_path / "run", "completion", records)
    assert (row["greedy"], row["greedy_share"]) == (3, 0.75)
    assert row["greedy_share_stderr"] == pytest.approx(math.sqrt(0.75 * 0.25 / 3), rel=1e-15)
    assert "greedy" not in overall(tmp_path / "text", "text", [document([-1])])


# -------------------------------------------------------------------------------------------------------------- groups


def test_groups_follow_the_total_in_order_of_appearance(tmp_path: Path):
    names = ["b", None, "a", "b", "all", None, "b"]
    records = [document([-float(i + 1)], group=name) for i, name in enumerate(names)]
    table = measured(tmp_path / "run", "text", records, group_by="subject")
    assert table.column("of").to_pylist() == ["all", "group", "group", "group", "group"]
    assert table.column("group").to_pylist() == ["all", "b", None, "a", "all"]
    assert table.column("documents").to_pylist() == [7, 3, 2, 1, 1]
    assert table.column("sum_logprob").to_pylist() == [-28.0, -12.0, -8.0, -3.0, -5.0]


@pytest.mark.parametrize(("kind", "reference"), [("text", True), ("choices", False)])
def test_a_group_has_the_statistics_of_its_records_alone(tmp_path: Path, kind: str, reference: bool):
    records = random_records(kind, 40, ["x", "y", None])
    table = measured(tmp_path / "run", kind, records, group_by="subject", reference=reference)
    for row in table.to_pylist()[1:]:
        mine = [record for record in records if record["group"] == row["group"]]
        alone = overall(tmp_path / f"of {row['group']}", kind, mine, reference=reference)
        assert row | {"of": "all", "group": "all"} == alone


# ------------------------------------------------------------------------------------------------------------- choices


def test_each_normalization_picks_its_own_choice(tmp_path: Path):
    """By sum the first, by code points the second, by bytes the third, by tokens the fourth."""
    tokens, given = [[-2.0], [-2.5], [-3.0, 0.0], [-1.0] * 4], ["a", "aaaa", "éééé", "b"]
    # by code points -2, -0.625, -0.75, -4; by bytes -2, -0.625, -0.375, -4; by tokens -2, -2.5, -1.5, -1
    for label, right in enumerate(("acc", "acc_norm", "acc_bytes", "acc_tokens")):
        row = overall(tmp_path / right, "choices", [choices(tokens, given, label)])
        assert [name for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens") if row[name] == 1.0] == [right]


def test_ties_go_to_the_first_choice(tmp_path: Path):
    even = choices([[-1.0], [-1.0], [-2.0, 0.0]], ["b", "a", "cc"], 0)
    row = overall(tmp_path / "run", "choices", [even, even | {"label": 1, "correct": False}])
    assert [row[name] for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")] == [0.5] * 4
    assert row["acc_stderr"] == pytest.approx(0.5, rel=1e-15)


def test_a_choice_without_characters_is_picked_by_sum_and_by_tokens_alone(tmp_path: Path):
    """As in lm-eval, where its sum is divided by 0: an empty choice can have a token, white space that the prompt ended with."""
    row = overall(tmp_path / "run", "choices", [choices([[-0.5], [-3.0]], ["", "b"], 0)])
    assert [row[name] for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")] == [1.0, 0.0, 0.0, 1.0]


def test_rows_without_a_label_are_counted_and_not_judged(tmp_path: Path):
    given = ["a", "b"]
    right, wrong = choices([[-1.0], [-2.0]], given, 0), choices([[-1.0], [-2.0]], given, 1)
    unlabelled = choices([[-1.0], [-math.inf]], given, None, truncated=True)
    row = overall(tmp_path / "a", "choices", [right, unlabelled, wrong, right, right])
    assert (row["rows"], row["labelled"], row["truncated"], row["minus_infinity"], row["scored_tokens"]) == (5, 4, 1, 1, 10)
    assert (row["acc"], row["acc_stderr"]) == (0.75, pytest.approx(0.25, rel=1e-15))
    row = overall(tmp_path / "b", "choices", [unlabelled])
    assert (row["labelled"], row["acc"], row["acc_stderr"], row["acc_norm"]) == (0, None, None, None)


def test_choices_without_any_chance_are_a_tie(tmp_path: Path):
    impossible = choices([[-math.inf], [-math.inf]], ["a", "b"], 0)
    row = overall(tmp_path / "run", "choices", [impossible])
    assert [row[name] for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")] == [1.0] * 4
    assert row["minus_infinity"] == 2


# ----------------------------------------------------------------------------------------------------------- reference


def test_divergence_by_hand(tmp_path: Path):
    """Logprobs -1 | -1, -4, 0 against -1.5 | -1, -2, -1: the sum is -6 against -5.5, residuals of the gaps by hand."""
    records = [
        document([-1], reference=[compared(0.5, 0.25, True, -1.5)]),
        document([-1, -4, 0], reference=[compared(0.0, -0.5, True, -1), compared(1.0, 0.0, False, -2), compared(-1e-8, 0.5, True, -1)]),
    ]
    row = overall(tmp_path / "run", "text", records, reference=True)
    assert row["kl_mean"] == pytest.approx(0.375, rel=1e-7)
    assert row["kl_mean_stderr"] == pytest.approx(math.sqrt(2 * 2 * 0.125**2) / 4, rel=1e-6)
    assert row["kl_mean_stderr_tokenwise"] == pytest.approx(np.std([0.5, 0, 1, 0], ddof=1) / 2, rel=1e-6)
    assert row["kl_min"] == float(np.float32(-1e-8))  # tiny negatives stay
    assert (row["kl_p50"], row["kl_max"]) == (0.25, 1.0)
    assert row["delta_p_mean"] == 0.0625
    assert row["delta_p_rms"] == pytest.approx(math.sqrt((0.0625 + 0.25 + 0.25) / 4), rel=1e-15)
    assert row["agreement"] == 0.75
    assert row["agreement_stderr"] == pytest.approx(math.sqrt(2 * (0.25**2 + 0.25**2)) / 4, rel=1e-15)
    assert row["reference_perplexity"] == pytest.approx(math.exp(5.5 / 4), rel=1e-15)
    # gaps of the documents -0.5 of 1 token and 1 of 3, their mean 0.125: residuals -0.625 and 0.625
    assert row["log_ratio"] == 0.125
    assert row["log_ratio_stderr"] == pytest.approx(math.sqrt(2 * 2 * 0.625**2) / 4, rel=1e-15)
    assert row["log_ratio_stderr_tokenwise"] == pytest.approx(np.std([-0.5, 0, 2, -1], ddof=1) / 2, rel=1e-15)
    assert row["perplexity_ratio"] == pytest.approx(row["token_perplexity"] / row["reference_perplexity"], rel=1e-15)
    assert row["perplexity_ratio_stderr"] == pytest.approx(row["log_ratio_stderr"] * math.exp(0.125), rel=1e-15)
    assert row["perplexity_ratio_stderr_tokenwise"] == pytest.approx(row["log_ratio_stderr_tokenwise"] * math.exp(0.125), rel=1e-15)


def test_a_model_held_against_itself_has_a_ratio_of_exactly_one(tmp_path: Path):
    rng = np.random.default_rng(0)
    logprobs = [-rng.exponential(3, n).astype(np.float32) for n in (3, 17, 1, 40)]
    records = [document(each.tolist(), reference=[compared(0.0, 0.0, True, float(x)) for x in each]) for each in logprobs]
    row = overall(tmp_path / "run", "text", records, reference=True)
    assert (row["perplexity_ratio"], row["log_ratio"], row["log_ratio_stderr"], row["log_ratio_stderr_tokenwise"]) == (1.0, 0.0, 0.0, 0.0)
    assert (row["kl_mean"], row["kl_mean_stderr"], row["agreement"], row["delta_p_rms"]) == (0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("model", "reference", "log_ratio", "ratio"),
    [(-math.inf, -1.0, math.inf, math.inf), (-1.0, -math.inf, -math.inf, 0.0), (-math.inf, -math.inf, None, None)],
)
@pytest.mark.filterwarnings("error")
def test_the_ratio_where_a_model_gives_no_chance(tmp_path: Path, model: float, reference: float, log_ratio: float, ratio: float):
    first = document([model, -1], reference=[compared(math.inf, 0.0, True, reference), compared(0.0, 0.0, True, -1)])
    records = [first, document([-1], reference=[compared(0.0, 0.0, True, -1)])]
    row = overall(tmp_path / "run", "text", records, reference=True)
    assert (row["log_ratio"], row["perplexity_ratio"]) == (log_ratio, ratio)
    assert [row[f"{name}_ratio_stderr"] for name in ("log", "perplexity")] == [None, None]
    assert (row["kl_mean"], row["kl_mean_stderr"], row["kl_max"], row["kl_p50"]) == (math.inf, None, math.inf, 0.0)


def test_how_a_document_was_cut_stands_beside_its_figures(tmp_path: Path):
    text = config_of("text")
    strided = text.model_copy(update={"score": text.score.model_copy(update={"windows": "strided", "stride": 96})})
    run = write_run(tmp_path / "text", text, [document([-1], group=group) for group in "ab"])
    for config, expected in ((text, ("lm_eval", None)), (strided, ("strided", 96))):
        table = score_statistics(run, config, "bos", False, 384)
        assert {(row["windows"], row["stride"]) for row in table.to_pylist()} == {expected}
        assert (table.schema.field("stride").type, table["context"].to_pylist()) == (pa.int32(), [384])
    row = score_statistics(write_run(tmp_path / "choices", config_of("choices"), []), config_of("choices"), "bos", False, None).to_pylist()[
        0
    ]
    assert (row["context"], row["windows"], row["stride"]) == (None, None, None)
