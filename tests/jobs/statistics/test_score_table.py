"""Tests the table that a scoring job prints at its end."""

import math
from pathlib import Path

import pytest
from mlx_bulk.jobs.statistics.score_stats import score_statistics
from mlx_bulk.jobs.statistics.score_table import closing_within
from mlx_bulk.jobs.terminal.tables import width_of

from ..support.score_runs import Record, choices, config_of, document, write_run

TOKEN: Record = {"kl": 0.25, "delta_p": -0.5, "agreement": True, "logprob": -1.0}


def shown(root: Path, kind: str, records: list[Record], *, group_by: str | None = None, reference: bool = False, width: int = 100) -> str:
    config = config_of(kind, group_by=group_by, reference=reference)
    return closing_within(score_statistics(write_run(root / "run", config, records), config, "bos", False, 512), width)


def test_groups_stand_below_all_with_their_errors_in_line(tmp_path: Path):
    texts = [([-1], "Shakespeare"), ([-1, -4, 0], "Shakespeare"), ([-2, -2], "日本語"), ([-1.5], "日本語")]
    records = [document(logprobs, "to be or", group=group) for logprobs, group in texts]
    assert shown(tmp_path, "text", records, group_by="subject") == (
        "               documents  tokens    token ppl   nats/token  bits/byte  byte ppl  word ppl\n"
        "all                    4       7  5.17 ± 0.83  1.64 ± 0.16     0.5185     1.432     2.607\n"
        "  Shakespeare          2       4   4.5 ± 1.1   1.50 ± 0.25     0.5410     1.455     2.718\n"
        "  日本語               2       3   6.3 ± 1.4   1.83 ± 0.22     0.4959     1.410     2.501\n"
        "\n"
        "± is the standard error, clustered by document."
    )


def test_choices_show_every_accuracy(tmp_path: Path):
    given, tokens = ["a", "bb"], [[-1.0], [-1.5, 0.0]]
    records = [choices(tokens, given, label) for label in (0, 0, 0, 1)] + [choices(tokens, given, None)]
    assert shown(tmp_path, "choices", records) == (
        "     rows  labelled          acc     acc_norm    acc_bytes   acc_tokens\n"
        "all     5         4  0.75 ± 0.25  0.25 ± 0.25  0.25 ± 0.25  0.25 ± 0.25\n"
        "\n"
        "± is the standard error.\n"
        "1 row has no label."
    )


def test_completions_show_how_many_are_greedy(tmp_path: Path):
    text = shown(tmp_path, "completion", [document([-1], is_greedy=greedy) for greedy in (True, False)])
    assert "greedy, %" in text
    assert "50 ± 50" in text


def test_one_document_against_a_reference_gives_tokenwise_errors(tmp_path: Path):
    reference = [TOKEN, TOKEN | {"kl": 0.75, "agreement": False}]
    assert shown(tmp_path, "text", [document([-1, -3], "to be", reference=reference)], reference=True) == (
        "     documents  tokens  token ppl  nats/token  bits/byte  byte ppl  word ppl\n"
        "all          1       2      7.389       2.000      1.154     2.226     7.389\n"
        "\n"
        "Against the reference model:\n"
        "     mean KL, nats  perplexity ratio  reference ppl  same top token, %  RMS Δp, %\n"
        "all         0.5000             2.718          2.718              50.00      50.00\n"
        "\n"
        "KL(reference ‖ model) of a token in nats, over all:\n"
        "   min     1 %     5 %    10 %    50 %    90 %    95 %    99 %  99.9 %     max\n"
        "0.2500  0.2550  0.2750  0.3000  0.5000  0.7000  0.7250  0.7450  0.7495  0.7500\n"
        "\n"
        "One document alone has no error clustered by document. Token-wise:\n"
        "2.0 ± 1.0 nats/token, mean KL 0.50 ± 0.25, perplexity ratio 2.7 ± 2.7."
    )


def test_records_outside_the_figures_are_reported(tmp_path: Path):
    records = [
        document([-1, -math.inf], "abc", scored_bytes=1),
        document([-2], truncated=True),
        document([-2], truncated=True),
        document([], ""),
    ]
    assert shown(tmp_path, "text", records).splitlines() == [
        "     documents  tokens  token ppl  nats/token  bits/byte*  byte ppl*  word ppl",
        "all          4       4          ∞           ∞           ∞          ∞         ∞",
        "",
        "1 document has nothing to score.",
        "2 documents were cut to the context.",
        "1 token has no chance at all (logprob -inf), so perplexity is infinite.",
        "* First tokens with nothing before them, or that begin in the prompt, are",
        "  not scored: their bytes do not count, their words do.",
    ]


def test_nothing_to_report_needs_no_notes(tmp_path: Path):
    text = shown(tmp_path, "text", [], reference=True)
    assert text.splitlines()[1:] == ["all          0       0          –           –          –         –         –"]


def test_groups_beyond_twenty_are_counted(tmp_path: Path):
    lines = shown(tmp_path, "text", [document([-1], group=str(i)) for i in range(22)], group_by="subject").splitlines()
    assert [line.split()[0] for line in lines[2:22]] == [str(i) for i in range(20)]
    assert lines[22] == "… and 2 more groups in stats.arrow"


def test_a_table_too_wide_for_the_terminal_is_parted_into_blocks_that_name_their_lines(tmp_path: Path):
    records = [document([-1, -2], "to be or", group="Shakespeare"), document([-1, -4, 0], "to be or", group="a name that is too long")]
    text = shown(tmp_path, "text", records, group_by="subject", width=80)
    assert text == (
        "                    documents  tokens     token ppl\n"
        "all                         2       5   4.95 ± 0.40\n"
        "  Shakespeare               1       2  4.482\n"
        "  a name that is …          1       3  5.294\n"
        "\n"
        "                       nats/token  bits/byte  byte ppl  word ppl\n"
        "all                 1.600 ± 0.080     0.7213     1.649     3.794\n"
        "  Shakespeare       1.500             0.5410     1.455     2.718\n"
        "  a name that is …  1.667             0.9017     1.868     5.294\n"
        "\n"
        "± is the standard error, clustered by document."
    )


@pytest.mark.parametrize("width", [80, 100, 110])
@pytest.mark.parametrize(("kind", "reference"), [("text", False), ("text", True), ("completion", True), ("choices", False)])
def test_the_table_fits_a_terminal(tmp_path: Path, kind: str, reference: bool, width: int):
    """Long names, large counts, large and tiny figures."""
    records = [
        document(
            [-0.0125 * i, -3.0] * 300,
            "many words " * 400,
            reference=[TOKEN | {"kl": 1e-7 * i}] * 600,
            group="日本語の" * i + "\n",
            is_greedy=True,
            scored_bytes=3,
        )
        for i in range(1, 40)
    ]
    if kind == "choices":
        records = [choices([[-1.0], [-1.5]], ["a", "bb"], i % 2, group="日本語の" * i) for i in range(1, 40)]
    lines = shown(tmp_path, kind, records, group_by="subject", reference=reference, width=width).splitlines()
    assert max(map(width_of, lines)) <= width
