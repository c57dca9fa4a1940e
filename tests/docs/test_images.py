"""The page on rows with pictures as a reader with the extra has it: the tiny model, the run on it, and its results."""

from pathlib import Path

import mlx_bulk
import pytest

from .pages import ROOT
from .shell import run_page


@pytest.mark.oracle
def test_the_page_works_with_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    run_page(ROOT / "docs" / "images.md", tmp_path, extra="vision")
    vectors = mlx_bulk.results("outputs/search")
    assert vectors["embedding"].combine_chunks().flatten().to_numpy().reshape(3, -1).var(axis=0).any()
    assert len(set(vectors["tokens"].to_pylist())) == 1
    assert mlx_bulk.results("outputs/colors", columns=["prompt_tokens"])["prompt_tokens"].to_pylist() == [116] * 3  # as the page says
