"""Each fault of mlx-lm's that the docs name is still there: the script beside it fails. A newer mlx-lm shortens the list."""

from typing import Any

import pytest

from .configs import CANNOT, CONFIGS
from .faults import FAULTS, PRELUDE, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.architectures[0])
def test_its_script_shows_the_fault(fault: Fault):
    assert set(fault.architectures) <= CONFIGS.keys() | CANNOT.keys()
    with pytest.raises((Exception, SystemExit)):
        exec(PRELUDE + fault.script, {})


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gpt_oss"])
def test_what_the_scripts_share_finds_nothing_where_nothing_is_wrong(name: str):
    scope: dict[str, Any] = {}
    exec(PRELUDE, scope)
    model = scope["build"](name, **{key: value for key, value in CONFIGS[name].items() if key != "model_type"})
    assert scope["in_a_batch"](model) < 1e-3
