"""Tests a flipped bit or a cut tail in a stored policy: ``verify`` tells it, and no record gets another policy."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ..adapters import write_adapter
from ..checkpoints import loaded
from .children import FORKS, Children
from .test_damage import FAULT_OF_OURS, Begun, damaged, outcome
from .tiny_runs import THOROUGH, TinyRun

pytestmark = pytest.mark.slow

CASES = 60 if THOROUGH else 15 if FORKS else 5
EVENTS = "events.jsonl"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, children: Children) -> Begun:
    """A complete run under one adapter."""
    run = TinyRun(tmp_path_factory.mktemp("policies"), children)
    run.write("rollout", batch={"deterministic": False}, policy={"watch": "adapters"})
    write_adapter(run.folder / "adapters" / "step_000001", loaded(children.model).network, seed=1)
    ended = run.start()
    assert ended.code == 3, ended.stderr
    return Begun(run, tmp_path_factory.mktemp("copies") / "policies", outcome(run.path))


@settings(max_examples=CASES, deadline=None, derandomize=not THOROUGH, suppress_health_check=[HealthCheck.too_slow])
@given(number=st.integers(0, 99), place=st.floats(0, 1, exclude_max=True), bit=st.none() | st.integers(0, 7))
def test_damage_to_a_policy_is_told(begun: Begun, number: int, place: float, bit: int | None):
    run = begun.restored()
    files = sorted(file for file in (run.path / "policies").rglob("*") if file.is_file() and file.stat().st_size)
    file = files[number % len(files)]
    file.write_bytes(damaged(file.read_bytes(), place, bit))
    note(f"{file.relative_to(run.path)}, {'cut off' if bit is None else f'bit {bit} flipped'} at {place:.3f} of it")

    told = run.verify()
    assert outcome(run.path) == begun.whole
    if file.name != EVENTS:  # which no record needs
        assert told.exit_code == 5, told.output
        assert str(file.parent.relative_to(run.path)) in told.output
    ended = run.start()
    assert "Traceback" not in ended.stderr
    assert FAULT_OF_OURS not in ended.stderr
    assert ended.code in (3, 5), ended.stderr
    assert outcome(run.path) == begun.whole


def test_these_are_all_files_of_a_stored_policy(begun: Begun):
    names = {file.name for file in Path(begun.copy).rglob("policies/**/*") if file.is_file()}
    assert names == {EVENTS, "policy.json", "adapter_config.json", "adapters.safetensors"}
