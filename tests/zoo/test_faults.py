"""Tests that each fault of mlx-lm that the docs name is still there: the script beside it fails. A newer mlx-lm shortens the list."""

import re
import sys
from typing import Any

import pytest
from mlx_bulk.runner.layers import kernel_injection

from .configs import CANNOT, CONFIGS
from .faults import BY_STEPS, FAULTS, IN_A_BATCH, IN_CALLS, PRELUDE, QUANTIZED, WITHOUT_CACHES, Fault


@pytest.fixture(autouse=True)
def as_it_came() -> None:
    """The model files hold mlx-lm's own functions, whatever models other tests have loaded."""
    files = [module for name, module in sys.modules.items() if name.startswith(kernel_injection.MODELS)]
    kernel_injection._swap(files, kernel_injection._BACK)  # pyright: ignore[reportPrivateUsage]


CASES = [(fault, name) for fault in FAULTS for name in fault.architectures]


@pytest.mark.parametrize(("fault", "name"), CASES, ids=[name for _, name in CASES])
def test_its_script_shows_the_fault(fault: Fault, name: str):
    assert name in CONFIGS.keys() | CANNOT.keys()
    with pytest.raises(Exception) as caught:  # noqa: PT011  (its kind and its words are compared below)
        exec(PRELUDE + fault.shows(name), {})
    assert re.match(fault.raises, f"{type(caught.value).__name__}: {caught.value}"), repr(caught.value)


@pytest.mark.parametrize("check", [IN_A_BATCH, BY_STEPS, IN_CALLS, WITHOUT_CACHES, QUANTIZED])
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gpt_oss"])
def test_the_scripts_find_nothing_in_a_right_model(name: str, check: str):
    scope: dict[str, Any] = {}
    exec(PRELUDE, scope)
    scope["model"] = scope["build"](name, **{key: value for key, value in CONFIGS[name].items() if key != "model_type"})
    exec(check, scope)  # the script asserts
