"""Tests that the figures in the demo's model card are those that mlx-bulk computes."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from ..checkpoints import DEMO
from ..jobs.support.bench import Bench


@pytest.mark.slow
def test_the_perplexity_on_the_card_is_the_one_that_a_scoring_job_gives(tmp_path: Path):
    """The card's windows do not overlap: 512 ids are fed, the 512 behind the first are scored.

    Strided windows of 512 ids count the targets in, so their borders lie an id earlier, another id earlier in each window: some 60
    borders among 36,423 tokens. That moves perplexity by 0.02; windows with a full last context (lm_eval) give 0.07 less.
    """
    found = re.search(r"^\| perplexity a token on the held-out scenes \| ([0-9.]+) \|$", (DEMO / "README.md").read_text(), re.MULTILINE)
    assert found is not None
    score = {"text": "{{ text }}", "context": 512, "windows": "strided", "stride": 512}
    done = Bench(tmp_path, DEMO).score("-q", rows=[], data={"path": "demo:documents.jsonl", "keep": "none"}, score=score)
    assert done.code == 0, done.stderr
    with pa.memory_map(str(done.output / "stats.arrow")) as file:
        row = pa.ipc.open_file(file).read_all().slice(0, 1).to_pylist()[0]
    assert (row["documents"], row["context"], row["windows"], row["stride"]) == (16, 512, "strided", 512)
    assert row["token_perplexity"] == pytest.approx(float(found[1]), abs=0.03)
