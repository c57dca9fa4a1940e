"""Tests that tests which share what is built for them stay in one process."""

from .work_units import work_unit


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
