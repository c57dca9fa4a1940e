"""Tests the config of sweeps: cells, their names, and errors before anything starts."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.cells import Cell, Overrides, cells, name_of
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.configs.sweep import SweepConfig

BASE: dict[str, Any] = {"job": "score", "model": {"path": "demo"}, "data": {"path": "rows.jsonl"}, "score": {"text": "{{ text }}"}}


def opened(folder: Path, *overrides: str, paths: dict[str, str] | None = None, **sections: Any) -> SweepConfig:
    path = folder / "sweep.yaml"
    least = {"job": "sweep", "base": BASE, "output": {"path": "out"}}
    path.write_text(yaml.safe_dump(least | sections, sort_keys=False), encoding="utf-8")
    config = load_config(path, overrides, paths)
    assert isinstance(config, SweepConfig)
    return config


def made(folder: Path, *overrides: str, **sections: Any) -> list[Cell]:
    return cells(opened(folder, *overrides, **sections), "sweep.yaml")


def lines(folder: Path, *overrides: str, **sections: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        made(folder, *overrides, **sections)
    return str(caught.value).replace(str(folder / "sweep.yaml"), "sweep.yaml").splitlines()


def changes(found: list[Cell]) -> list[dict[str, Any]]:
    return [dict(cell.overrides) for cell in found]


# ------------------------------------------------------------------------------------------------------ which cells


def test_all_combinations_the_last_key_changing_fastest(tmp_path: Path) -> None:
    found = made(tmp_path, matrix={"model.path": ["demo", "./4bit"], "score.context": [8, "auto"]})
    assert changes(found) == [
        {"model.path": "demo", "score.context": 8},
        {"model.path": "demo", "score.context": "auto"},
        {"model.path": "./4bit", "score.context": 8},
        {"model.path": "./4bit", "score.context": "auto"},
    ]
    configs = [cell.config for cell in found]
    assert all(isinstance(config, ScoreConfig) for config in configs)
    assert [config.model.path for config in configs] == ["demo", "demo", "./4bit", "./4bit"]
    assert [config.output.path for config in configs] == [f"out/{cell.name}" for cell in found]


def test_exclude_leaves_out_what_matches_all_of_its_values(tmp_path: Path) -> None:
    matrix: dict[str, Any] = {"model.path": ["a", "b"], "data.limit": [1, 2]}
    assert changes(made(tmp_path, matrix=matrix, exclude=[{"model.path": "a", "data.limit": 2}])) == [
        {"model.path": "a", "data.limit": 1},
        {"model.path": "b", "data.limit": 1},
        {"model.path": "b", "data.limit": 2},
    ]
    assert len(made(tmp_path, matrix=matrix, exclude=[{"model.path": "a"}])) == 2


def test_include_adds_cells_and_is_not_excluded(tmp_path: Path) -> None:
    matrix: dict[str, Any] = {"model.path": ["a", "b"]}
    found = made(tmp_path, matrix=matrix, include=[{"model.path": "a", "data.limit": 5}], exclude=[{"model.path": "a"}])
    assert changes(found) == [{"model.path": "b"}, {"model.path": "a", "data.limit": 5}]
    assert changes(made(tmp_path, include=[{"data.limit": 5}])) == [{"data.limit": 5}]


def test_values_are_any_yaml(tmp_path: Path) -> None:
    values: list[Any] = ["a.jsonl", ["b.jsonl", "c.jsonl"]]
    found = made(tmp_path, matrix={"data.path": values, "score.reference": [None, {"path": "demo", "dtype": "float32"}]})
    assert [cell.config.data.path for cell in found] == ["a.jsonl", "a.jsonl", ["b.jsonl", "c.jsonl"], ["b.jsonl", "c.jsonl"]]
    references = [cell.config.reference for cell in found]
    assert [reference and reference.dtype for reference in references] == [None, "float32", None, "float32"]


def test_token_ids_stay_one_key(tmp_path: Path) -> None:
    base = {**BASE, "job": "generate", "prompt": {"text": "x"}, "sampling": {"logit_bias": {5: 1.0}}}
    del base["score"]
    found = made(tmp_path, base=base, matrix={"sampling.logit_bias.5": [2, 3]})
    assert [getattr(cell.config, "sampling").logit_bias for cell in found] == [{5: 2.0}, {5: 3.0}]  # noqa: B009 - of one kind of job


@given(
    first=st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True),
    second=st.lists(st.integers(1, 50), min_size=1, max_size=5, unique=True),
)
def test_cells_are_the_product_each_once_with_a_name_of_its_own(first: list[int], second: list[int]) -> None:
    matrix: dict[str, Any] = {"data.limit": first, "score.context": second}
    values = {"job": "sweep", "base": BASE, "matrix": matrix, "output": {"path": "out"}}
    found = cells(SweepConfig.model_validate(values), "x")
    assert [tuple(cell.overrides.values()) for cell in found] == [(a, b) for a in first for b in second]
    assert len({cell.name for cell in found}) == len(found)


# ----------------------------------------------------------------------------------------------------------- names


def test_a_name_derives_from_its_own_values_alone(tmp_path: Path) -> None:
    alone = made(tmp_path, matrix={"model.path": ["demo"], "data.limit": [5]})[0].name
    beside = [cell.name for cell in made(tmp_path, matrix={"data.limit": [4, 5], "model.path": ["./x", "demo"]})]
    assert alone in beside
    assert alone.startswith("data.limit=5,model.path=demo-")


def test_names_are_safe_for_file_systems(tmp_path: Path) -> None:
    values = ["/a/b/rows.jsonl.gz", "hf:org/name", "é/ü ß", "../..", "x" * 300, 'a"b\\c:d*', "-"]
    names = [name_of({"data.path": value, "model.path": value}) for value in values]
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9=,._-]{0,95}", name) for name in names)
    assert names[0].startswith("data.path=rows,")
    assert len(set(names)) == len(values)


def test_values_of_another_type_are_another_cell() -> None:
    assert len({name_of({"score.context": value}) for value in (1, 1.0, "1", True, None)}) == 5


def test_cells_do_not_depend_on_the_order_or_type_of_keys() -> None:
    one: Overrides = {"sampling.logit_bias": {5: 1, "a": [1, {"b": None}]}}
    assert name_of(one) == name_of({"sampling.logit_bias": {"a": [1, {"b": None}], "5": 1}})


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"matrix": {"model.pth": ["x"]}}, "sweep.yaml: matrix: model.pth: no such key; did you mean model.path?"),
        (
            {"matrix": {"sampling.n": [1]}},
            "sweep.yaml: matrix: sampling: no such key; it belongs to job: generate or rollout; remove it, or",
        ),
        ({"include": [{"data.limt": 1}]}, "sweep.yaml: include[0]: data.limt: no such key; did you mean data.limit?"),
        ({"matrix": {"data.limit.x": [1]}}, "sweep.yaml: matrix: data.limit is a single value and has no keys; set data.limit itself"),
        (
            {"matrix": {"data.limit": []}},
            "sweep.yaml: matrix.data.limit: found []; expected a mapping of the base's settings (score.context)",
        ),
        (
            {"matrix": {"data.limit": 5}},
            "sweep.yaml: matrix.data.limit: found 5; expected a mapping of the base's settings (score.context)",
        ),
        ({"matrix": {"output.path": ["x"]}}, "sweep.yaml: matrix: output.path: a cell's folder lies in the sweep's output.path; remove it"),
        ({"matrix": {"job": ["score"]}}, "sweep.yaml: matrix: job is one for all cells; set base.job, or make another sweep"),
        (
            {"matrix": {"model": [{"path": "a"}], "model.path": ["b"]}},
            "sweep.yaml: matrix: model.path lies in model, which is set as a whole; set one of them",
        ),
        (
            {"matrix": {"batch.memory": [1, 1.0]}},
            'sweep.yaml: the cells {"batch.memory": 1} and {"batch.memory": 1.0} have the same settings, '
            "so one would stand twice; remove one of the two",
        ),
        ({"matrix": {"data.limit": [1, 2, 1]}}, 'sweep.yaml: the cell {"data.limit": 1} stands twice; remove one of the two'),
        (
            {"matrix": {"data.limit": [1]}, "include": [{"data.limit": 1}]},
            'sweep.yaml: the cell {"data.limit": 1} stands twice; remove one of the two',
        ),
        (
            {"matrix": {"data.limit": [1]}, "exclude": [{"data.limit": 2}]},
            'sweep.yaml: exclude[0]: {"data.limit": 2} matches no combination of the matrix; correct or remove it',
        ),
        (
            {"matrix": {"data.limit": [1]}, "exclude": [{"data.limt": 1}]},
            "sweep.yaml: exclude[0]: data.limt is no key of the matrix; did you mean data.limit?",
        ),
        ({}, "sweep.yaml: matrix: no cell is left; expected a key with a list of values, or cells in include"),
        (
            {"matrix": {"data.limit": [1]}, "exclude": [{"data.limit": 1}]},
            "sweep.yaml: matrix: no cell is left; expected a key with a list of values, or cells in include",
        ),
        (
            {"matrix": {"data.limit": [1, 0]}},
            'sweep.yaml: the cell {"data.limit": 0}: data.limit: found 0; expected a whole number of at least 1, or null',
        ),
        (
            {"matrix": {"data.limit": [1, 2], "score.stride": [None, 4]}},
            'sweep.yaml: the cell {"data.limit": 1, "score.stride": 4} and 1 more: score.stride: found 4; expected null, since',
        ),
        (
            {"matrix": {"data.limit": [1, 2]}, "base": {**BASE, "on_error": "stop"}},
            'sweep.yaml: base.on_error: found "stop"; expected quarantine, quarantine_all or fail',
        ),
        (
            {"base": {**BASE, "output": {"path": "x"}}},
            "sweep.yaml: base.output: expected nothing, since each cell's folder lies in output.pa",
        ),
        (
            {"base": {**BASE, "job": "scroe"}},
            'sweep.yaml: base.job: found "scroe"; expected generate, score, rollout, embed or classify; did you mean score?',
        ),
        ({"base": {**BASE, "job": "sweep"}}, 'sweep.yaml: base.job: found "sweep"; expected generate, score, rollout, embed or classify'),
        ({"base": {}}, "sweep.yaml: base.job: missing; expected generate, score, rollout, embed or classify"),
        ({"base": 5}, "sweep.yaml: base: found 5; expected a job's settings, or the path of a config file"),
        ({"base": "gone.yaml"}, "gone.yaml: no such file; expected a job config ("),
        ({"base": "${GONE}/x"}, 'sweep.yaml: base: found "${GONE}/x"; the environment variable GONE is not set; set it, or write the path'),
        (
            {"matrix": {"data.path": ["a", "-"]}},
            'sweep.yaml: the cell {"data.path": "-"}: data.path: found -; a sweep reads its input once a',
        ),
    ],
)
def test_a_message_is_one_line_that_names_the_fix(tmp_path: Path, sections: dict[str, Any], line: str) -> None:
    (found,) = lines(tmp_path, **sections)
    assert found.startswith(line)


def test_all_wrong_cells_are_shown_at_once(tmp_path: Path) -> None:
    found = lines(tmp_path, matrix={"data.limit": [0, 1], "score.context": [8, "x"]})
    assert found == [
        'sweep.yaml: the cell {"data.limit": 0, "score.context": 8} and 1 more: data.limit: '
        "found 0; expected a whole number of at least 1, or null",
        'sweep.yaml: the cell {"data.limit": 0, "score.context": "x"} and 1 more: score.context: '
        'found "x"; expected auto, or a whole number of at least 1',
    ]


# -------------------------------------------------------------------------------------------------- overrides and paths


def test_overrides_reach_into_base_and_matrix(tmp_path: Path) -> None:
    config = opened(tmp_path, "base.data.limit=3", "matrix.score.context=[4, 8]", "output.path=there", matrix={"score.context": [2]})
    found = cells(config, "sweep.yaml")
    assert [(cell.config.data.limit, cell.overrides) for cell in found] == [(3, {"score.context": 4}), (3, {"score.context": 8})]
    assert config.output.path == "there"


def test_the_short_options_go_to_the_base(tmp_path: Path) -> None:
    config = opened(tmp_path, paths={"model.path": "m", "data.path": "d", "output.path": "o"}, matrix={"data.limit": [1]})
    (cell,) = cells(config, "sweep.yaml")
    assert (cell.config.model.path, cell.config.data.path, config.output.path) == ("m", "d", "o")


def test_a_base_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE | {"output": {"path": "elsewhere"}}))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(BASE | {"on_error": "fail"}))
    inline = made(tmp_path, matrix={"data.limit": [1, 2]})
    for path in ("base.yaml", "${HERE}/base.yaml"):
        assert made(tmp_path, base=path, matrix={"data.limit": [1, 2]}) == inline
    (cell,) = made(tmp_path, "base=other.yaml", "base.data.limit=7", base="base.yaml", matrix={"score.context": [4]})
    assert (cell.config.on_error, cell.config.data.limit) == ("fail", 7)


def test_paths_in_cells_expand_and_keep_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found = made(tmp_path, matrix={"data.path": ["~/a.jsonl", "demo:documents.jsonl"]}, output={"path": "~/out"})
    assert [cell.overrides["data.path"] for cell in found] == ["~/a.jsonl", "demo:documents.jsonl"]
    assert found[0].config.data.path == "/home/me/a.jsonl"
    assert Path(str(found[1].config.data.path)).is_file()
    assert found[0].config.output.path == f"/home/me/out/{found[0].name}"


def test_the_documented_sweep_has_the_cells_that_it_says(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/sweeps.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    sections = yaml.safe_load(block)
    assert sections.pop("job") == "sweep"
    assert [tuple(cell.overrides.values()) for cell in made(tmp_path, **sections)] == [
        ("demo", 128),
        ("demo", 512),
        ("./demo-4bit", 512),
        ("demo", 64),
    ]
