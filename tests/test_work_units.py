"""Tests that tests which share what is built for them stay in one process."""

from pathlib import Path

from .work_units import BY_ARCHITECTURE, RULES, work_unit


def test_a_file_stays_together():
    assert work_unit("tests/faults/test_points.py::test_a_new_run[a, then b]") == "tests/faults/test_points.py"
    assert work_unit("tests/zoo/test_zoo.py::test_the_core_is_a_part_of_the_zoo") == "tests/zoo/test_zoo.py"


def test_an_architecture_of_the_zoo_stays_together():
    of_files = (
        "test_zoo.py::test_logprobs_spread[mamba2]",
        "test_long.py::test_rows[mamba2]",
        "test_zoo.py::test_quantized_weights[mamba2-4]",
    )
    assert {work_unit(f"tests/zoo/{name}") for name in of_files} == {"tests/zoo/mamba2"}
    assert work_unit("tests/zoo/test_zoo.py::test_logprobs_spread[mamba]") == "tests/zoo/mamba"


def test_files_against_transformers_are_shared_out_by_architecture():
    for file in BY_ARCHITECTURE:
        assert (Path(__file__).parents[1] / file).is_file()
        assert work_unit(f"{file}::test_completions_and_echo[qwen2_vl-ragged]") == work_unit(f"{file}::test_samples[qwen2_vl-mlx-plain]")
        assert work_unit(f"{file}::test_completions_and_echo[gemma3-ragged]") == f"{file}[gemma3]"


def test_the_rules_for_files_of_ours_stay_together():
    assert {work_unit(f"{file}::test_a_rule") for file in RULES} == {"tests/test_layering.py"}
    assert all((Path(__file__).parents[1] / file).is_file() for file in RULES)
