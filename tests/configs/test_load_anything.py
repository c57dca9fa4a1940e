"""Tests that any input gives a config or a ConfigError."""

import re
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.explain import settings
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig, JobConfig
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.configs.sweep import SweepConfig

from .written import LEAST, one_file, scalars, values, written

SCORING = yaml.safe_load(LEAST) | {"job": "score", "prompt": {}, "score": {"text": "{{ text }}"}}


LEASTS: dict[type[JobConfig | SweepConfig], dict[str, Any]] = {
    GenerateConfig: yaml.safe_load(LEAST),
    ScoreConfig: SCORING,
    SweepConfig: {
        "job": "sweep",
        "base": {key: value for key, value in SCORING.items() if key != "output"},
        "matrix": {"data.limit": [1]},
        "output": {"path": "out"},
    },
}


KEYS = [(kind, key) for kind in LEASTS for key in settings(kind)]


keys = st.one_of(st.sampled_from(sorted({part for _, key in KEYS for part in key.split(".")})), scalars)


@given(
    tree=st.dictionaries(keys, st.one_of(values, st.dictionaries(keys, values, max_size=5)), max_size=6),
    of=st.sampled_from(KEYS),
)
@one_file
def test_any_mapping_is_a_config_or_a_config_error(tmp_path: Path, tree: Any, of: tuple[type[JobConfig | SweepConfig], str]) -> None:
    path = tmp_path / "job.yaml"
    kind, key = of
    section, _, name = key.rpartition(".")
    valid = LEASTS[kind]
    for wanted in (tree, valid | tree, valid | ({section: {**valid.get(section, {}), name: tree}} if section else {name: tree})):
        path.write_text(yaml.safe_dump(wanted, allow_unicode=True), encoding="utf-8", errors="replace")
        try:
            config = load_config(path)
            assert isinstance(config, JobConfig) or cells(config, str(path))
        except ConfigError as error:
            assert all(line.startswith(f"{path}: ") for line in str(error).split("\n"))  # noqa: PT017 - either outcome is right


@given(text=st.text(), override=st.text(), key=st.sampled_from(settings(GenerateConfig)))
@one_file
def test_any_text_is_a_config_or_a_config_error(tmp_path: Path, text: str, override: str, key: str) -> None:
    written(tmp_path, LEAST)
    for overrides in ([override], [f"{key}={override}"], [f"{key}.{override}"]):
        try:
            assert isinstance(load_config(tmp_path / "job.yaml", overrides), JobConfig | SweepConfig)
        except ConfigError as error:
            assert str(error)  # noqa: PT017 - either outcome is right


scorings = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("text", "completion", "choices", "label", "messages", "group_by"), st.sampled_from([None, "a", "{{ b }}"])),
        "context": st.one_of(st.just("auto"), st.integers(0, 9)),
        "windows": st.sampled_from(["lm_eval", "strided", "sliding"]),
        "stride": st.one_of(st.none(), st.integers(0, 9)),
        "prefix": st.sampled_from(["bos", "bos_or_eos", "none", None]),
        "bos_every_window": st.sampled_from(["auto", True, False, "yes"]),
        "reference": st.sampled_from([None, "demo", {"path": "demo", "dtype": "float16"}, {"dtype": "float16"}, ""]),
    },
)


@given(score=scorings, prompt=st.sampled_from([{}, {"text": "q"}, {"user": "q"}]))
@one_file
def test_score_settings_are_one_scoring_or_name_their_own_keys(tmp_path: Path, score: Any, prompt: Any) -> None:
    path = written(tmp_path, yaml.safe_dump(SCORING | {"score": score, "prompt": prompt}))
    try:
        config = load_config(path)
    except ConfigError as error:
        assert all(re.match(rf"{re.escape(str(path))}: (score|prompt)\b", line) for line in str(error).splitlines())  # noqa: PT017
        return
    assert isinstance(config, ScoreConfig)
    given_kinds = [kind for kind in ("text", "completion", "choices", "messages") if score.get(kind) is not None]
    assert given_kinds == [config.score.kind]
    assert bool(prompt) == (config.score.kind in ("completion", "choices"))
    assert (config.score.windows == "strided") == (config.score.stride is not None)
    assert config.score.label is None or config.score.kind == "choices"
    reference = score.get("reference")
    assert (config.reference and config.reference.path) == (reference and "demo")
    assert load_config(written(tmp_path, yaml.safe_dump(config.model_dump(mode="json")))) == config
