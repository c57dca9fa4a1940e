"""Loads one checkpoint in lm-eval's own HF backend and in ours, and compares their results."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.requests import Passage

TASKS = Path(__file__).parent / "tasks"
NAMES = ["questions", "plays", "sums"]
TOKEN, DOCUMENT = 1e-4, 1e-5  # absolute a token, and relative a document: float32 on both sides, sums in another order
METRIC = 1e-4  # relative: perplexities are exponentials of sums that differ by as much


@dataclass(slots=True, frozen=True)
class Pair:
    """The same checkpoint in transformers and in mlx."""

    theirs: Any
    ours: Any


def pair(folder: Path) -> Pair:
    """Loads both models of a checkpoint, in float32 and with batches of four."""
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    from mlx_bulk.jobs.harness import BulkLM

    hf: Any = HFLM
    theirs = hf(pretrained=str(folder), dtype="float32", device="cpu", batch_size=4)
    ours: Any = BulkLM
    return Pair(theirs, ours(pretrained=str(folder), dtype="float32", batch_size=4))


def evaluated(lm: Any, **settings: Any) -> dict[str, Any]:
    """lm-eval's results of all three tasks, with samples."""
    import lm_eval  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    run: Any = lm_eval.simple_evaluate
    return run(model=lm, tasks=NAMES, task_manager=manager, bootstrap_iters=0, **settings)


@contextmanager
def counted(lm: Any) -> Generator[list[int]]:
    """Numbers of scored tokens of the passages that a model is asked for, sorted when the block has ended."""
    from mlx_bulk.jobs.harness import lm as harness

    counts: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(lm, harness.BulkLM):
            build = harness.passage

            def noted(context: list[int], continuation: list[int], max_length: int) -> Passage:
                passage = build(context, continuation, max_length)
                counts.append(len(passage.positions))
                return passage

            patch.setattr(harness, "passage", noted)
            patch.setattr("mlx_bulk.jobs.harness.requests.passage", noted)
        else:
            score = type(lm)._loglikelihood_tokens  # pyright: ignore[reportPrivateUsage]

            def noted_tokens(self: Any, requests: list[Any], **settings: Any) -> Any:
                counts.extend(len(continuation) for _, _, continuation in requests)
                return score(self, requests, **settings)

            patch.setattr(type(lm), "_loglikelihood_tokens", noted_tokens)
        yield counts
    counts.sort()


def assert_same_results(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Checks that prompts, loglikelihoods, greedy flags, texts and metrics agree, sample by sample."""
    for task in NAMES:
        rows = list(zip(theirs["samples"][task], ours["samples"][task], strict=True))
        assert len(rows) == ours["n-samples"][task]["effective"]
        for a, b in rows:
            assert a["arguments"] == b["arguments"]
            _assert_same_sample(task, a["resps"], b["resps"])
        for name, value in theirs["results"][task].items():
            if isinstance(value, float):
                np.testing.assert_allclose(ours["results"][task][name], value, rtol=METRIC, err_msg=f"{task} {name}")
    assert theirs["results"].keys() == ours["results"].keys()


def _assert_same_sample(task: str, theirs: list[Any], ours: list[Any]) -> None:
    if task == "sums":
        assert ours == theirs
        return
    for [a], [b] in zip(theirs, ours, strict=True):
        if task == "plays":
            np.testing.assert_allclose(b, a, rtol=DOCUMENT)
        else:
            np.testing.assert_allclose(b[0], a[0], rtol=DOCUMENT, atol=TOKEN)
            assert b[1] == a[1]
