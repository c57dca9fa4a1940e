"""Writes configs into files, and the lines by which they are refused."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.load import load_config
from mlx_bulk.configs.schema import GenerateConfig

LEAST = """\
job: generate
model: {path: demo}
data: {path: rows.jsonl}
prompt: {user: "{{ question }}"}
output: {path: out}
"""


# Each example writes the same file anew, so sharing tmp_path between examples is safe; files make some of them slow.
one_file = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value).replace(str(path), "job.yaml")


def generation(path: Path, *overrides: str) -> GenerateConfig:
    config = load_config(path, overrides)
    assert isinstance(config, GenerateConfig)
    return config


def lines(folder: Path, text: str, *overrides: str) -> list[str]:
    return message(written(folder, text), *overrides).splitlines()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "all", "~x", "${", "${X}", "~\0", "demo:", "hf:a/b", "-"]),
)


values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(scalars, inner, max_size=3)), max_leaves=6
)
