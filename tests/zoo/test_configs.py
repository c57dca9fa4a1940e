"""Tests that every model file of the installed mlx-lm is in the zoo, or on the list of exceptions with its reason."""

from pathlib import Path

import mlx.core as mx
import mlx_lm.models
import pytest

from .configs import CANNOT, CONFIGS, PARTS, REFUSED
from .networks import build


def files() -> set[str]:
    return {path.stem for path in Path(mlx_lm.models.__path__[0]).glob("*.py")}


def test_every_model_file_is_in_one_list_and_no_other():
    assert files() == CONFIGS.keys() | CANNOT.keys() | PARTS
    assert len(files()) == len(CONFIGS) + len(CANNOT) + len(PARTS)


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_run_still_does_not(name: str):
    if "Metal" in CANNOT[name] and mx.metal.is_available():
        pytest.skip("it may run here")
    with pytest.raises((Exception, SystemExit)):
        mx.eval(build(name, REFUSED[name] | {"model_type": name})(mx.array([[1, 2]])))


def test_a_shared_file_defines_no_model():
    for name in PARTS:
        source = (Path(mlx_lm.models.__path__[0]) / f"{name}.py").read_text(encoding="utf-8")
        assert "class Model(" not in source, name
