"""The figures of an evaluation, from lm-eval's results: tasks before groups, errors where there are any, numbers alone."""

import math
from typing import Any

from mlx_bulk.jobs.evals.figures import figures_closing, figures_table

RESULTS: dict[str, Any] = {
    "results": {
        "both": {"alias": "both", "acc,none": 0.5, "acc_stderr,none": 0.1},
        "one": {"alias": " - one", "acc,none": 0.25, "acc_stderr,none": 0.125, "name_len": 3, "sample_len": 4},
        "two": {"alias": " - two", "word_perplexity,none": math.nan, "word_perplexity_stderr,none": "N/A", "exact,strict": 1},
    },
    "groups": {"both": {"alias": "both", "acc,none": 0.5, "acc_stderr,none": 0.1}},
    "higher_is_better": {"one": {"acc": True}, "two": {"word_perplexity": False}},
    "n-shot": {"one": 5},
    "n-samples": {"one": {"original": 10, "effective": 4}},
}


def test_each_metric_of_a_task_is_a_row_and_groups_come_last():
    rows = figures_table(RESULTS).to_pylist()
    assert [(row["task"], row["is_group"], row["metric"], row["filter"]) for row in rows] == [
        ("one", False, "acc", "none"),
        ("two", False, "word_perplexity", "none"),
        ("two", False, "exact", "strict"),
        ("both", True, "acc", "none"),
    ]
    one, perplexity, exact, _ = rows
    assert (one["value"], one["stderr"], one["higher_is_better"], one["num_fewshot"], one["samples"]) == (0.25, 0.125, True, 5, 4)
    assert math.isnan(perplexity["value"])
    assert perplexity["stderr"] is None
    assert (exact["value"], exact["stderr"], exact["higher_is_better"]) == (1.0, None, None)


def test_the_text_names_a_task_once_and_says_which_way_is_better():
    lines = figures_closing(figures_table(RESULTS)).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["task", "one", "two", "both"]
    assert "acc ↑" in lines[1]
    assert "0.25 ± 0.12" in lines[1]
    assert "word_perplexity ↓" in lines[2]
    assert "NaN" in lines[2]
    assert lines[4].startswith("both (group)  none    acc ")
