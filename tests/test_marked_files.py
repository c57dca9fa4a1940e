"""Tests that ``-m slow`` and ``-m oracle`` leave out files without the mark, and no test that has it."""

from pathlib import Path

import pytest

from .marked_files import MARKS, is_left_out, require_named_marks

PLAIN = "def test_it():\n    pass\n"
MARKED = "import pytest\n\n@pytest.mark.{}\n" + PLAIN


@pytest.mark.parametrize("mark", MARKS)
def test_files_that_do_not_name_the_mark_are_left_out(tmp_path: Path, mark: str):
    (plain := tmp_path / "test_plain.py").write_text(PLAIN)
    (marked := tmp_path / "test_marked.py").write_text(MARKED.format(mark))
    (support := tmp_path / "support.py").write_text(PLAIN)
    assert [is_left_out(file, mark) for file in (plain, marked, support, tmp_path)] == [True, False, False, False]


def test_a_mark_may_come_from_a_module_beside_the_file(tmp_path: Path):
    (plain := tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "cases.py").write_text("import pytest\n\nCASES = [pytest.param(1, marks=pytest.mark.slow)]\n")
    assert (is_left_out(plain, "slow"), is_left_out(plain, "oracle")) == (False, True)


@pytest.mark.parametrize("expression", ["", "not slow", "slow or oracle", "slow and not oracle", "cpu_path"])
def test_all_files_stay_with_each_other_expression(tmp_path: Path, expression: str):
    (plain := tmp_path / "test_plain.py").write_text(PLAIN)
    assert not is_left_out(plain, expression)


class Collected:
    """A test as collected: its file, and its marks wherever they come from."""

    nodeid = "test_it"

    def __init__(self, path: Path, *marks: str):
        self.path, self._marks = path, marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self._marks else None


def test_a_mark_that_the_file_does_not_name_is_refused(tmp_path: Path):
    (marked := tmp_path / "test_marked.py").write_text(MARKED.format("slow"))
    require_named_marks([Collected(marked), Collected(marked, "slow"), Collected(marked, "cpu_path")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        pytest.UsageError, match=r"test_it has the mark oracle; write pytest\.mark\.oracle in its own file, by which -m oracle finds it"
    ):
        require_named_marks([Collected(marked, "slow", "oracle")])  # pyright: ignore[reportArgumentType]
