"""What a session notes of its models, and what the setup takes over from the probes."""

from pathlib import Path

import pytest
from mlx_bulk.configs.schema import BatchConfig
from mlx_bulk.runner.fitting import fit
from mlx_bulk.runner.prefill import Wanted

from ..checkpoints import loaded, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("fitting") / "tiny")


def test_what_scoring_relies_on_is_tried_where_prompts_are_scored(checkpoint: Path):
    setup, reference, about = fit(loaded(checkpoint), BatchConfig(), Wanted(echo=True))
    assert (setup.head is not None, setup.right_padded, setup.shared, reference) == (True, True, True, None)
    assert about["probe"]["scoring"] == {"head": True, "right_padded": True, "shared": True, "reasons": []}


def test_a_reference_is_tried_too_and_both_keep_the_rows_that_fit_beside_each_other(checkpoint: Path):
    model = loaded(checkpoint)
    setup, reference, about = fit(model, BatchConfig(), Wanted(echo=True), model)
    assert reference is not None
    assert reference.head is not None
    assert reference.limits == setup.limits
    alone, _, _ = fit(model, BatchConfig(), Wanted(echo=True))
    assert setup.limits.token_bytes == 2 * alone.limits.token_bytes
    assert about["reference"]["probe"]["scoring"]["shared"]


def test_a_job_that_scores_no_prompt_tries_none_of_it(checkpoint: Path):
    setup, _, about = fit(loaded(checkpoint), BatchConfig(), Wanted())
    assert (setup.head, setup.right_padded, setup.shared) == (None, False, False)
    assert "scoring" not in about["probe"]
