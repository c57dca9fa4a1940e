"""Runs embedding jobs with the real command: columns, prompts, cuts, types of vectors, what is refused, statistics."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.embed.vector_types import int8_vectors, ranges_of

from ..checkpoints import write_checkpoint
from ..jobs.support.bench import Done
from ..jobs.support.embed_runs import PROMPTS, TEXTS, WIDTH, embed, embedder, vectors
from ..jobs.support.exported_runs import export
from ..sentence_folders import write_dense, write_modules

CLOSE = 2e-6  # float32 sums over other batches


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedder(tmp_path_factory.mktemp("model") / "bert")


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run with the settings that the model's files say."""
    return embed(tmp_path_factory.mktemp("whole"), model)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


def test_a_row_is_a_vector_of_one_length_with_its_tokens(tmp_path: Path, model: Path, whole: Done) -> None:
    done = whole
    field = done.table.schema.field("embedding")
    assert field.type == pa.list_(pa.float32(), WIDTH)
    assert field.metadata == {b"dimensions": str(WIDTH).encode(), b"similarity": b"cosine"}
    assert done.table.schema.names == ["row", "key", "input", "embedding", "tokens", "truncated"]
    assert done.table.column("tokens").to_pylist() == [11, 3, 9, 2, 15]
    assert done.table.column("truncated").to_pylist() == [False] * 5
    close(np.linalg.norm(vectors(done), axis=1), 1)
    assert np.unique(vectors(done).round(3), axis=0).shape == (5, WIDTH)
    close(vectors(embed(tmp_path, model, texts=[TEXTS[3]])), vectors(done)[3:4])


def test_the_end_of_a_run_says_what_was_embedded(tmp_path: Path, model: Path) -> None:
    done = embed(tmp_path, model, embed={"max_length": 8})
    [row] = pa.ipc.open_file(str(done.output / "stats.arrow")).read_all().to_pylist()
    assert {name: row[name] for name in ("rows", "tokens", "most_tokens", "truncated", "dimensions", "dtype")} == {
        "rows": 5,
        "tokens": 8 + 3 + 8 + 2 + 8,
        "most_tokens": 8,
        "truncated": 3,
        "dimensions": WIDTH,
        "dtype": "float32",
    }
    close([row["norm_min"], row["norm_mean"], row["norm_max"]], 1)
    assert "rows  tokens  mean tokens  most        vector  mean norm  min norm  max norm" in done.stderr
    assert (
        "3 of 5 rows have a text that was cut to the model's longest (column truncated; embed.too_long: error sets them aside)"
        in done.stderr
    )
    assert "complete: 5 of 5 rows; 29 tokens in" in done.last_line


def test_a_prompt_stands_before_each_text(tmp_path: Path, model: Path, whole: Done) -> None:
    by_hand = vectors(embed(tmp_path, model, prompt={"text": "what is {{ t }}"}))
    named = vectors(embed(tmp_path, model, "--overwrite", embed={"prompt_name": "query"}))
    written = vectors(embed(tmp_path, model, "--overwrite", embed={"prompt": PROMPTS["query"]}))
    assert np.array_equal(named, by_hand)
    assert np.array_equal(written, by_hand)
    assert np.abs(named - vectors(whole)).max() > 0.01


def test_the_models_default_prompt_may_be_left_out(tmp_path: Path) -> None:
    model = embedder(tmp_path / "model", default_prompt_name="query", include_prompt=False)
    default = vectors(embed(tmp_path, model))
    assert np.array_equal(default, vectors(embed(tmp_path, model, "--overwrite", embed={"prompt_name": "query"})))
    none = vectors(embed(tmp_path, model, "--overwrite", embed={"prompt": ""}))
    embedder(tmp_path / "model", include_prompt=True)
    counted = vectors(embed(tmp_path, model, "--overwrite", embed={"prompt_name": "query"}))
    assert min(np.abs(default - none).max(), np.abs(default - counted).max()) > 0.01


def test_a_prompt_that_the_model_lacks_lists_those_it_has(tmp_path: Path, model: Path) -> None:
    done = embed(tmp_path, model, code=2, embed={"prompt_name": "pasage"})
    assert "embed.prompt_name: found pasage; expected one of the model's: passage, query" in done.stderr


def test_dimensions_are_cut_and_lengths_set_again(tmp_path: Path, model: Path, whole: Done) -> None:
    full = vectors(whole)
    cut = vectors(embed(tmp_path, model, "--overwrite", embed={"dimensions": 12}))
    close(cut, full[:, :12] / np.linalg.norm(full[:, :12], axis=1, keepdims=True))
    close(vectors(embed(tmp_path, model, "--overwrite", embed={"dimensions": 12, "normalize": False})), full[:, :12])
    raw = vectors(embed(tmp_path, model, "--overwrite", embed={"normalize": False}))
    assert np.ptp(np.linalg.norm(raw, axis=1)) > 0.1
    close(raw / np.linalg.norm(raw, axis=1, keepdims=True), full)


def test_long_texts_are_cut_or_set_aside(tmp_path: Path) -> None:
    model = embedder(tmp_path / "model", max_seq_length=8)
    texts = ["the cats had two apples and three dogs", "the cats had two apples and", "a" * 100_000]
    done = embed(tmp_path, model, texts=texts)
    assert done.table.column("tokens").to_pylist() == [8, 8, 3]  # a word of more than 100 letters is unknown
    assert done.table.column("truncated").to_pylist() == [True, False, False]
    assert "1 of 3 rows has a text that was cut to the model's longest" in done.stderr
    close(vectors(done)[0], vectors(done)[1])
    done = embed(tmp_path, model, "--overwrite", texts=texts, code=3, embed={"too_long": "error"})
    [error] = done.errors
    assert (error["row"], error["stage"]) == (0, "too_long")
    assert "the text has 10 tokens, and the model takes 8" in error["message"]


def test_lengths_that_the_model_cannot_take_are_refused(tmp_path: Path, model: Path) -> None:
    done = embed(tmp_path, model, code=2, embed={"max_length": 4096})
    assert "embed.max_length: found 4096; expected at most 128, the model's positions" in done.stderr
    done = embed(tmp_path, model, code=2, embed={"max_length": 2})
    assert "embed.max_length: found 2; expected at least 3, since the tokenizer puts 2 special tokens around each text" in done.stderr


def test_more_dimensions_than_the_model_has_are_refused(tmp_path: Path, model: Path) -> None:
    done = embed(tmp_path, model, code=2, embed={"dimensions": WIDTH + 1})
    assert f"embed.dimensions: found {WIDTH + 1}; expected at most {WIDTH}, the numbers of this model's vectors" in done.stderr


def test_without_modules_the_pooling_is_asked_for(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "llama")
    done = embed(tmp_path, model, code=2)
    assert "embed.pooling: " in done.stderr
    assert "holds no modules.json, so nothing says how its hidden states become one vector; set it to one of" in done.stderr
    done = embed(tmp_path, model, embed={"pooling": "lasttoken", "normalize": True}, texts=["What is it?", "a b"])
    assert "mlx-bulk: 2 rows from " in done.stderr
    close(np.linalg.norm(vectors(done), axis=1), 1)


def test_a_conversion_without_the_settings_of_pooling_asks_for_it(tmp_path: Path) -> None:
    """MLX conversions leave out 1_Pooling, and keep modules.json: a mean would be a guess."""
    model = embedder(tmp_path / "model")
    (model / "1_Pooling" / "config.json").unlink()
    done = embed(tmp_path, model, code=2)
    assert "names Pooling, whose config.json is not there (conversions to MLX leave it out); set it to one of cls," in done.stderr
    assert embed(tmp_path, model, embed={"pooling": "mean"}).table.num_rows == 5


def test_float16_rounds_and_its_overflow_is_an_error_of_the_row(tmp_path: Path) -> None:
    model = embedder(tmp_path / "model", normalize=False)
    write_modules(model, ("Pooling", {"pooling_mode": "mean"}), write_dense(model, 2, WIDTH, 4, activation_function="torch.nn.Identity"))
    layer = model / "2_Dense" / "model.safetensors"
    full = vectors(embed(tmp_path, model))
    assert np.array_equal(vectors(embed(tmp_path, model, "--overwrite", embed={"dtype": "float16"})), full.astype(np.float16))
    weights: Any = mx.load(str(layer))
    mx.save_safetensors(str(layer), {name: 1e5 * array for name, array in weights.items()})
    done = embed(tmp_path, model, "--overwrite", code=3, embed={"dtype": "float16"})
    large = np.abs(vectors(embed(tmp_path, model, "--overwrite"))).max(axis=1) > 65504
    assert large.any()
    assert [error["row"] for error in done.errors] == np.flatnonzero(large).tolist()
    assert {(error["stage"], error["error"]) for error in done.errors} == {("store", "Overflow")}
    assert ", and float16 ends at 65,504; set embed.normalize to true, or embed.dtype to float32" in done.errors[0]["message"]


def test_int8_takes_its_ranges_from_vectors_of_before(tmp_path: Path, model: Path, whole: Done) -> None:
    full = vectors(whole)
    export(whole.output, "parquet", tmp_path / "floats.parquet")
    ranges = np.stack([full.min(axis=0), full.max(axis=0)])
    for source in (whole.output, "floats.parquet"):
        done = embed(
            tmp_path, model, "--overwrite", embed={"dtype": "int8", "calibration": str(tmp_path / source)}, batch={"rows_per_shard": 2}
        )
        field = done.table.schema.field("embedding")
        assert field.type == pa.list_(pa.int8(), WIDTH)
        assert np.array_equal(ranges_of(field), ranges)
        again = int8_vectors(full, ranges)
        assert np.abs(vectors(done).astype(int) - again.astype(int)).max() <= 1  # float32 sums over other batches
    assert "norm" not in done.stderr
    export(done.output, "parquet", tmp_path / "int8.parquet")
    for frame in (
        pl.read_parquet(tmp_path / "int8.parquet"),
        pl.read_ipc(done.output / "results" / "part-00000000.arrow"),
    ):
        assert frame.schema["embedding"] == pl.Array(pl.Int8, WIDTH)  # its reader takes no metadata but text


def test_other_ranges_are_another_run(tmp_path: Path, model: Path) -> None:
    vector_file = tmp_path / "v.npy"
    np.save(vector_file, np.random.default_rng(0).normal(size=(20, WIDTH)).astype(np.float32))
    settings = {"dtype": "int8", "calibration": str(vector_file)}
    embed(tmp_path, model, embed=settings)
    moved = tmp_path / "w.npy"
    vector_file.rename(moved)
    assert "complete already" in embed(tmp_path, model, embed=settings | {"calibration": str(moved)}).last_line
    np.save(moved, np.random.default_rng(1).normal(size=(20, WIDTH)).astype(np.float32))
    done = embed(tmp_path, model, code=4, embed=settings | {"calibration": str(moved)})
    assert "ranges of column embedding: the run has sha256 " in done.stderr


def test_ubinary_packs_signs(tmp_path: Path, model: Path, whole: Done) -> None:
    done = embed(tmp_path, model, embed={"dtype": "ubinary", "dimensions": 20})
    field = done.table.schema.field("embedding")
    assert (field.type, field.metadata[b"dimensions"]) == (pa.list_(pa.uint8(), 3), b"20")
    assert np.array_equal(vectors(done), np.packbits(vectors(whole)[:, :20] > 0, axis=1))


def test_rows_that_cannot_be_embedded_are_set_aside(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "llama")
    done = embed(tmp_path, model, texts=["a b", "", None, "c"], code=3, embed={"pooling": "mean"})
    [error] = done.errors
    assert (error["row"], error["stage"]) == (2, "template")
    assert done.table.column("tokens").to_pylist() == [3, 1, 2]  # the tokenizer's BOS stands in the empty text


def test_vectors_are_exported_as_parquet_and_json(tmp_path: Path, whole: Done) -> None:
    done = whole
    export(done.output, "parquet", tmp_path / "v.parquet")
    export(done.output, "jsonl", tmp_path / "v.jsonl")
    field = pq.read_schema(tmp_path / "v.parquet").field("embedding")
    assert (field.type, field.metadata[b"dimensions"]) == (pa.list_(pa.float32(), WIDTH), str(WIDTH).encode())
    lines = [json.loads(line)["embedding"] for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert np.array_equal(np.array(lines, np.float32), vectors(done))


@pytest.mark.slow
def test_the_report_shows_lengths_and_neighbours(whole: Done) -> None:
    result = CliRunner().invoke(cli, ["report", str(whole.output)])
    assert result.exit_code == 0, result.output
    page = (whole.output / "report.html").read_text()
    for words in ("All vectors are normalized: their length is 1.", "among the first 5 rows", "numbers of a vector, stored as float32"):
        assert words in page
    assert "▸" in page
    assert "two dogs and three cats cost more" in page


def test_a_sweep_shows_figures_of_vectors(tmp_path: Path, model: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"t": "a"}\n{"t": "two cats"}\n')
    base = {"job": "embed", "model": str(model), "data": str(tmp_path / "rows.jsonl"), "prompt": {"text": "{{ t }}"}}
    config = {"job": "sweep", "base": base, "matrix": {"embed.dimensions": [8, None]}, "output": str(tmp_path / "sweep")}
    (tmp_path / "sweep.yaml").write_text(json.dumps(config))
    result = CliRunner().invoke(cli, ["run", str(tmp_path / "sweep.yaml"), "--no-supervised"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0:6] for line in result.stderr.splitlines()[-3:-1]] == [
        ["8", "2", "7", "3.500", "4", "8"],
        ["null", "2", "7", "3.500", "4", "32"],
    ]
