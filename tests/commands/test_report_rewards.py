"""Tests the report's part on rewards: bars, axes, words, failures of functions, and names of samples."""

from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.jobs.report.charts import Chart
from mlx_bulk.jobs.report.distributions import rewards
from mlx_bulk.jobs.report.sweep_page import shades_of
from mlx_bulk.jobs.report_data.record_pass import RecordPass
from mlx_bulk.jobs.report_data.rollout_figures import RolloutFigures
from mlx_bulk.jobs.statistics.advantages import DEGENERATE

from ..jobs.report.test_report import reported
from ..jobs.support.bench import ROWS, Bench
from ..jobs.support.rollout_batches import batches


def found_in(groups: list[tuple[str, list[float | None]]]) -> RecordPass:
    """A pass over groups of a policy version and rewards each, by one function ``right``."""
    rollout = RolloutFigures()
    for row, (version, given) in enumerate(groups):
        samples = [(0, row, number, reward) for number, reward in enumerate(given)]
        for batch in batches(samples, versions=[version] * len(samples)):
            rollout.add(batch)
    rollout.finish()
    return RecordPass([], rollout=rollout)


def charts(found: RecordPass) -> dict[str, Chart]:
    section = rewards(found, {})
    assert section is not None
    return {chart.name: chart for chart in section.charts}


def test_rewards_of_0_and_1_are_two_bars_about_them():
    spec = charts(found_in([("0", [0.0, 1.0, 1.0])]))["rewards"].spec
    assert [(round((bar["a"] + bar["b"]) / 2, 9), bar["n"]) for bar in spec["data"]["values"]] == [(0.0, 1), (1.0, 2)]
    assert spec["encoding"]["x"]["axis"]["values"] == [0.0, 1.0]
    assert [bar["t"] for bar in spec["data"]["values"]] == ["0: 1 samples", "1: 2 samples"]


def test_counts_are_labelled_at_integers():
    assert charts(found_in([("0", [0.0, 1.0])]))["rewards"].spec["encoding"]["y"]["axis"]["tickMinStep"] == 1


@pytest.mark.parametrize(
    ("names", "places", "heading"),
    [
        (["16", "0", "7"], [0, 7, 16], "policy version"),
        (["base", "a"], [1, 2], "policy version, in order of appearance"),
    ],
)
def test_the_axis_of_versions_is_the_version(names: list[str], places: list[int], heading: str):
    spec = charts(found_in([(name, [0.0, 1.0]) for name in names]))["versions"].spec
    axis = spec["encoding"]["x"]["axis"]
    assert [point["x"] for point in spec["data"]["values"]] == places
    assert (axis["title"], axis["values"]) == (heading, places)


def test_a_curve_with_a_single_k_is_one_number():
    assert charts(found_in([("0", [1.0])]))["pass"].words == "right: pass@1 1.000."
    assert charts(found_in([("0", [1.0, 0.0])]))["pass"].words == "right: pass@1 0.500, pass@2 1.000."


def test_dropped_groups_are_reported_and_void_pass_at_k():
    found = found_in([("0", [1.0, 0.0])])
    stale, alike = rewards(found, {"StaleGroup": 2}), rewards(found, {"StaleGroup": 2, DEGENERATE: 1000})
    assert stale is not None
    assert alike is not None
    assert stale.words.endswith("one. Groups that were dropped are in no figure here: 2 StaleGroup.")
    assert "2 StaleGroup, 1,000 DegenerateGroup. So pass@k is not drawn" in alike.words
    assert "pass" in {chart.name for chart in stale.charts} - {chart.name for chart in alike.charts}


def test_nothing_rated_has_no_mean_of_0():
    assert charts(found_in([("0", [None, None])])) == {}


@pytest.mark.slow
def test_unrated_samples_of_a_function_are_reported(bench: Bench):
    source = bench.root / "mine.py"
    source.write_text("def fails(prompts, completions, **_):\n    raise ValueError('no <b>such</b> thing')\n")
    rows = [{"id": f"q-{row['id']}", "q": row["q"], "answer": "4"} for row in ROWS]
    given: list[dict[str, Any]] = [{"fn": "last_number", "args": {"column": "answer"}}, {"fn": f"{source}:fails"}]
    done = bench.run(job="rollout", rows=rows, data={"key": "id"}, rewards=given, sampling={"max_tokens": 4, "temperature": 1.0, "n": 2})
    assert done.code in (0, 3), done.stderr
    page = reported(done.output)
    text = "".join(page.text.split())
    assert f"samplesrewarderrorfirstmessageofthefirst{2 * len(ROWS)}" in text
    assert "ValueError:no<b>such</b>thing" in text
    assert f"Notrated{2 * len(ROWS)}rewardsnotgiven,of1kind" in text
    record = page.samples["records"][0]
    facts = dict(record["facts"])
    assert facts["fails"].startswith("– (exception: ValueError: no <b>such</b> thing")
    assert not [fact for fact in facts.values() if fact == "None"]
    assert record["who"].startswith(f"{record['key']} · sample ")


def test_shades_go_by_rank_so_that_one_bad_cell_does_not_hide_the_best():
    assert shades_of([10.0, 11.0, 5_000.0, None], more=False) == [1.0, 0.5, 0.0, None]
    assert shades_of([10.0, 10.0, 9.0], more=True) == [1.0, 1.0, 0.0]
    assert shades_of([3.0, 3.0], more=True) == [None, None]


def test_the_words_of_an_error_have_a_column_that_breaks_and_its_count_stands_first(bench: Bench):
    page = reported(bench.run(rows=[{"q": None}]).output)
    text = "".join(page.text.split())
    assert "rowsstageclassfirstmessageofthefirst1template" in text
    cells = [attributes.get("class") for tag, attributes in page.elements if tag == "td"]
    assert cells == [None, None, None, "prose"]
    assert (
        "white-space: nowrap" in Path("jobs/report/assets/report.css").read_text().partition(".stacked th, .stacked td {")[2].split("}")[0]
    )
