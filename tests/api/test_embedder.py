"""Tests an embedding model in this process: its vectors are those of a run of the same rows, and errors are clear."""

import threading
from pathlib import Path
from typing import Any

import mlx_bulk
import numpy as np
import pytest

from ..jobs.support.bench import Bench
from ..jobs.support.embed_runs import PROMPTS, embed, vectors
from ..jobs.support.embed_runs import embedder as write_embedder

TEXTS = ["What is 2 + 2?", "A longer prompt, with café, 東京 and 🙂 in it.", "O", "The king is dead.\n", " Enter a messenger."]
ROWS = [{"q": text} for text in TEXTS]
POOLED: dict[str, Any] = {"pooling": "mean", "normalize": True}


@pytest.fixture(scope="module")
def embedder(model: Path) -> mlx_bulk.Embedder:
    return mlx_bulk.load_embedder(str(model), pooling="mean", normalize=True)


def stored(bench: Bench, rows: list[dict[str, str]], **sections: Any) -> np.ndarray:
    """The vectors of a run."""
    settings: dict[str, Any] = {"job": "embed", "prompt": {"text": "{{ q }}"}, "embed": POOLED, **sections}
    done = bench.score(rows=rows, **settings)
    assert done.code == 0, done.stderr
    return np.array(done.table["embedding"].to_pylist(), np.float32)


def test_vectors_are_those_of_a_run(bench: Bench, embedder: mlx_bulk.Embedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, stored(bench, ROWS), rtol=0, atol=1e-6)  # float32 in another batch
    assert not np.allclose(vectors[0], vectors[1], atol=0.01)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)


def test_their_order_is_that_of_the_texts(embedder: mlx_bulk.Embedder) -> None:
    texts = [f"{'word ' * (7 * i % 11)}{i}" for i in range(23)]
    together = embedder.embed(texts)
    for i in (0, 5, 22):
        np.testing.assert_allclose(embedder.embed([texts[i]])[0], together[i], rtol=0, atol=1e-6)


def test_settings_are_those_of_the_job(bench: Bench, model: Path) -> None:
    settings: dict[str, Any] = {"pooling": "lasttoken", "normalize": True, "dimensions": 8, "max_length": 4}
    short = mlx_bulk.load_embedder(model, **settings)
    assert short.dimensions == 8
    np.testing.assert_allclose(short.embed(TEXTS), stored(bench, ROWS, embed=settings), rtol=0, atol=1e-6)


def test_prompts_are_the_models_or_ones_own(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "model", default_prompt_name="passage")
    local = mlx_bulk.load_embedder(folder)
    assert (local.prompts, local.similarity) == (PROMPTS, "cosine")
    query = local.embed(TEXTS, prompt_name="query")
    np.testing.assert_allclose(query, vectors(embed(tmp_path, folder, texts=TEXTS, embed={"prompt_name": "query"})), rtol=0, atol=1e-6)
    for ours, theirs in (
        (local.embed(TEXTS, prompt=PROMPTS["query"]), query),
        (local.embed(TEXTS), local.embed(TEXTS, prompt_name="passage")),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert np.abs(local.embed(TEXTS, prompt="") - local.embed(TEXTS)).max() > 0.01
    with pytest.raises(mlx_bulk.BulkError, match=r"embed\.prompt_name: found pasage; expected one of the model's: passage, query"):
        local.embed(TEXTS, prompt_name="pasage")
    with pytest.raises(mlx_bulk.BulkError, match=r"embed\.prompt_name: found query; expected null"):
        local.embed(TEXTS, prompt_name="query", prompt="x")


def test_a_text_that_fails_raises_or_is_nan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = mlx_bulk.load_embedder(write_embedder(tmp_path / "model"), max_length=8)
    texts = ["two cats", "three good dogs " * 9, "a"]
    with pytest.raises(mlx_bulk.BulkError, match="row 1 failed at too_long"):
        local.embed(texts, too_long="error")
    found = local.embed(texts, too_long="error", on_error="quarantine")
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]
    assert "1 of 3 texts have no vector, NaN stands in its place; texts[1] failed at too_long: the text has" in caplog.text
    np.testing.assert_allclose(found[[0, 2]], local.embed(texts)[[0, 2]], rtol=0, atol=1e-6)
    left = local.embed(texts, too_long="truncate_left")
    assert np.isfinite(left).all()


def test_no_texts_give_no_vectors(embedder: mlx_bulk.Embedder) -> None:
    assert embedder.embed([]).shape == (0, embedder.dimensions)


def test_what_is_wrong_is_named(embedder: mlx_bulk.Embedder, model: Path) -> None:
    wrong: Any = {"dimension": 3}
    with pytest.raises(TypeError, match=r"load_embedder\(\) has no argument dimension; did you mean dimensions\?"):
        mlx_bulk.load_embedder(model, **wrong)
    with pytest.raises(mlx_bulk.BulkError, match=r"embed\.dimensions: found 0"):
        mlx_bulk.load_embedder(model, dimensions=0)
    with pytest.raises(TypeError, match="texts: found one string"):
        embedder.embed("O")
    with pytest.raises(mlx_bulk.BulkError, match="nowhere"):
        mlx_bulk.load_embedder("./nowhere")


def test_another_thread_is_told_whose_the_model_is(embedder: mlx_bulk.Embedder) -> None:
    raised: list[Exception] = []

    def call() -> None:
        try:
            embedder.embed(["O"])
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="other")
    thread.start()
    thread.join()
    assert "belongs to the thread 'MainThread', which loaded it, and was called in 'other'" in str(raised[0])
