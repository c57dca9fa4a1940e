"""Short ways to write a config: sections as one value, options of the command line, and a file of rows in a config's place."""

import json
from pathlib import Path

import pytest
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config, load_eval
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.configs.sweep import SweepConfig

from .written import generation, message, written

SHORT = 'job: generate\nmodel: demo\ndata: rows.jsonl\nprompt: {user: "{{ question }}"}\noutput: out\n'
SWEEP = "job: sweep\nbase: {job: generate, model: demo, data: [a.jsonl], prompt: {user: hi}}\nmatrix: {data.limit: [1, 2]}\noutput: out\n"


def test_a_section_can_be_the_one_value_that_is_meant(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT)
    made = generation(path)
    assert (made.model.path, made.data.path, made.output.path) == ("demo", "rows.jsonl", "out")
    assert generation(path, "data=[a.jsonl, b.jsonl]").data.path == ["a.jsonl", "b.jsonl"]
    reached = generation(path, "model.dtype=float16", "data.limit=3", "model=other", "output=there")
    assert (reached.model.path, reached.model.dtype, reached.data.limit, reached.output.path) == ("other", "auto", 3, "there")
    assert generation(path, "data=demo:questions.jsonl").data.path == generation(path, "data.path=demo:questions.jsonl").data.path
    assert "data: found 5; expected a mapping with path" in message(path, "data=5")


def test_so_can_those_of_a_sweeps_base_and_of_an_evaluation(tmp_path: Path) -> None:
    sweep = load_config(written(tmp_path, SWEEP), ["base.model=other"])
    assert isinstance(sweep, SweepConfig)
    assert [(cell.config.model.path, cell.config.data.limit) for cell in cells(sweep, "sweep")] == [("other", 1), ("other", 2)]
    written(tmp_path, SHORT).rename(tmp_path / "base.yaml")
    sweep = load_config(written(tmp_path, f"job: sweep\nbase: {tmp_path}/base.yaml\nmatrix: {{model: [demo, x]}}\noutput: out\n"))
    assert isinstance(sweep, SweepConfig)
    assert [cell.config.model.path for cell in cells(sweep, "sweep")] == ["demo", "x"]
    evaluation = load_eval(written(tmp_path, "job: eval\nmodel: demo\ntasks: arc_easy\noutput: out\n"))
    assert (evaluation.model.path, evaluation.output.path) == ("demo", "out")


def test_the_limit_of_the_command_line(tmp_path: Path) -> None:
    made = load_config(written(tmp_path, SHORT), ["data.limit=9"], {"data.limit": 3})
    assert isinstance(made, GenerateConfig)
    assert made.data.limit == 3
    swept = load_config(written(tmp_path, SWEEP.replace("data.limit: [1, 2]", "sampling.n: [1, 2]")), [], {"data.limit": 3})
    assert isinstance(swept, SweepConfig)
    assert [cell.config.data.limit for cell in cells(swept, "sweep")] == [3, 3]


def test_a_problem_names_the_argument_that_is_wrong(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT)
    wrong = '--set sampling.n=x: sampling.n: found "x"; expected a whole number of at least 1'
    assert message(path, "sampling.n=2", "sampling.n=x") == wrong
    with pytest.raises(ConfigError, match=r"^--limit 0: data\.limit: found 0; expected a whole number of at least 1, or null$"):
        load_config(path, [], {"data.limit": 0})
    with pytest.raises(ConfigError, match=r"^--model : model\.path: found \"\"; expected demo"):
        load_config(path, [], {"model.path": ""})
    [long] = message(path, f"sampling.seed={'x' * 500}").splitlines()
    assert long.startswith("--set sampling.seed=xxx")
    assert "…: sampling.seed: found" in long


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b'{"q": 1}\n{"q": 2}\n'),
        ("rows.jsonl", b'{"q": 1}\n'),
        ("rows.json", b'[{"q": 1}]'),
        ("rows.csv", b"a,b\n1,2\n"),
        ("rows.parquet", b"PAR1\xff\xfe"),
        ("rows.jsonl.gz", b"\x1f\x8b\x08"),
        ("rows.txt", b"one\ntwo\n"),
        ("rows.jsonl", b'{"job": "generate"}\n' * 100_000),
    ],
)
def test_rows_in_the_place_of_a_config_are_told(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for load in (load_config, load_eval):
        with pytest.raises(ConfigError) as refused:
            load(path)
        assert str(refused.value).startswith(f"{path}: this is data, not a config; name it in a config's data.path, or beside a config: ")
        assert f"--data {path}" in str(refused.value)


def test_a_config_may_be_json(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(
        json.dumps({"job": "generate", "model": "demo", "data": "a", "prompt": {"text": "x"}, "output": "o"})
    )
    assert generation(tmp_path / "job.json").model.path == "demo"
    (tmp_path / "job.csv").write_text(SHORT)
    assert generation(tmp_path / "job.csv").model.path == "demo"


def test_a_text_with_a_colon_is_a_text():
    """YAML reads it as a mapping; a column may be called so."""
    rows = {"job": "generate", "model": "demo", "data": "rows.csv", "prompt": {"user": "{{ q }}"}, "output": {"path": "out"}}
    config = load_config(rows, ["data.key=Unnamed: 0", "prompt.system=Rule: be brief", "sampling=temperature: 0.5"])
    assert isinstance(config, GenerateConfig)
    assert (config.data.key, config.prompt.system, config.sampling.temperature) == ("Unnamed: 0", "Rule: be brief", 0.5)
