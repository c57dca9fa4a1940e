"""Tests any content of a config or of ``--set``: a config or one readable block of errors, never a traceback."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.configs.cells import cells
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.explain import settings as keys_of
from mlx_bulk.configs.jobs import JOBS
from mlx_bulk.configs.load import load_config, load_eval
from mlx_bulk.configs.sweep import SweepConfig
from mlx_bulk.configs.visible import visible_lines

GENERATE: dict[str, Any] = {
    "job": "generate",
    "model": {"path": "demo"},
    "data": {"path": ["a.jsonl", "hf:b/c"], "keep": ["x"]},
    "prompt": {"user": "{{ q }}", "system": "s", "chat_template_args": {"x": 1}},
    "sampling": {"temperature": 0.5, "stop": ["a"], "logit_bias": {5: 1.0}, "columns": {"seed": "s"}},
    "logprobs": {"top": 3},
    "batch": {"rows": 4, "tokens": "auto"},
    "output": {"path": "out"},
}
SCORE: dict[str, Any] = {
    "job": "score",
    "model": {"path": "demo"},
    "data": {"path": "a.jsonl"},
    "score": {"text": "{{ t }}", "reference": {"path": "demo"}},
    "output": {"path": "out"},
}
SWEEP: dict[str, Any] = {
    "job": "sweep",
    "base": {key: value for key, value in SCORE.items() if key != "output"},
    "matrix": {"score.windows": ["lm_eval", "strided"], "model.path": ["demo", "x"]},
    "exclude": [{"model.path": "x"}],
    "output": {"path": "out"},
}
EVAL: dict[str, Any] = {"job": "eval", "model": {"path": "demo"}, "tasks": ["arc_easy"], "output": {"path": "out"}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.integers(-(10**60), 10**60) | st.floats() | texts
words = st.sampled_from(
    ["~", "demo", "auto", "{{ q }}", "{% if %}", "${HOME}", "${", "~nobody/x", "-", "hf:", "demo:x", "[", "1e999", ".nan", "a\0b"]
)
values = st.recursive(
    scalars | words, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | words, inner, max_size=4), max_leaves=8
)
WORDS = "job generate sweep model path base matrix : : { } [ ] , ' \" &a *a !!python/object/apply:os.system !t # ? <<: \\ \ufeff \x07 0x 🙂"
tokens = st.sampled_from([*WORDS.split(" "), "\n", "\n  ", "\n- ", "|\n", ">-\n", "\t", "---\n", "...\n", "%YAML 1.1\n", " "])


def assert_config_or_a_readable_refusal(path: Path, *overrides: str) -> None:
    for read in (load_config, load_eval):
        try:
            config = read(path, overrides)
            if isinstance(config, SweepConfig):
                cells(config, str(path))
        except ConfigError as error:
            message = str(error)
            assert message.strip()
            assert visible_lines(message) == message
            assert len(message) < 20_000
            assert "pydantic" not in message
            assert "Traceback" not in message


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.lists(tokens, max_size=25).map(lambda parts: "".join(parts).encode()) | texts.map(str.encode))
def test_texts(tmp_path_factory: Any, text: bytes):
    path = tmp_path_factory.mktemp("fuzz") / "job.yaml"
    path.write_bytes(text)
    assert_config_or_a_readable_refusal(path)


def places(config: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a config, and of a key beside them that is not there."""
    if not isinstance(config, dict | list):
        return [above]
    inner = config.items() if isinstance(config, dict) else enumerate(config)
    return [above, *(path for key, value in inner for path in places(value, (*above, key)))]


def changed(config: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The config with ``value`` at ``place``."""
    if not place:
        return value
    copy = dict(config) if isinstance(config, dict) else list(config)
    copy[place[0]] = changed(copy[place[0]], place[1:], value)
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    config = draw(st.sampled_from([GENERATE, SCORE, SWEEP, EVAL]))
    for _ in range(draw(st.integers(1, 3))):
        value = draw(values)
        place = draw(st.sampled_from([place for place in places(config) if place]))
        if draw(st.booleans()):
            config = changed(config, place, value)
        elif isinstance(config.get(place[0]), dict):
            config = {**config, place[0]: {**config[place[0]], draw(texts | words): value}}
        else:
            config = {key: inner for key, inner in config.items() if key != place[0]}
        if len(config) < 2:
            break
    return config


@settings(max_examples=60, deadline=None)
@given(mutated(), st.booleans())
def test_changed_configs(tmp_path_factory: Any, config: Any, as_json: bool):
    path = tmp_path_factory.mktemp("fuzz") / "job.yaml"
    text = json.dumps(config, ensure_ascii=False) if as_json else yaml.safe_dump(config, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
    assert_config_or_a_readable_refusal(path)


keys = st.sampled_from(
    sorted({key for model in JOBS.values() for key in keys_of(model)} | {"base.model.path", "matrix.score.context", "include"})
)
overrides = st.one_of(
    texts,
    st.text(max_size=10),
    st.tuples(keys | texts, st.lists(tokens, max_size=8).map("".join) | st.text(max_size=12)).map("=".join),
    st.tuples(keys, st.sampled_from([".x", "[0]", ".", "..a", ""]), values.map(lambda v: json.dumps(v, ensure_ascii=False))).map(
        lambda t: f"{t[0]}{t[1]}={t[2]}"
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([GENERATE, SCORE, SWEEP, EVAL]), st.lists(overrides, min_size=1, max_size=3))
def test_overrides(tmp_path_factory: Any, config: Any, given_: list[str]):
    path = tmp_path_factory.mktemp("fuzz") / "job.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert_config_or_a_readable_refusal(path, *given_)
