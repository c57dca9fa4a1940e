"""Runs of job: embed on tiny models of every family against sentence-transformers, each text alone, in batches of any size."""

import json
from pathlib import Path

import numpy as np
import pytest

from ..jobs.support.embed_runs import embed, vectors
from ..runner.models.test_against_sentence_transformers import CASES, TEXTS, alone, assert_the_same, theirs
from ..sentence_folders import write_modules

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("case", CASES)
def test_a_runs_vectors_are_those_of_sentence_transformers(tmp_path: Path, case: str) -> None:
    write, modules = CASES[case]
    folder = write(tmp_path / "model")
    write_modules(folder, *modules(folder), old=case.startswith("bert"))
    expected = alone(theirs(folder))
    for rows in ("auto", 3):
        done = embed(tmp_path, folder, "--overwrite", texts=TEXTS, batch={"rows": rows})
        assert_the_same(np.array(vectors(done), np.float32), expected)
    assert json.loads((done.output / "run.json").read_text())["identity"]["model.modules"] != "none"
