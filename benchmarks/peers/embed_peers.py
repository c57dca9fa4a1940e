"""Peers that embed: ours, sentence-transformers on torch, and an encoder's ONNX graph in onnxruntime and OpenVINO. All in float32.

All get token ids, sorted by length, in batches of the size that is best for each (found on every fourth text).
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers.embedders import GRAPH
from racing.turns import THREADS

import numpy as np
from numpy.typing import NDArray

SIZES = (8, 16, 32, 64)  # texts a batch that peers are tried with
Ids = list[int]
Vectors = NDArray[np.float32]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]  # ids and mask [B, T]
Run = Callable[[list[Batch]], list[Vectors]]


def ours(folder: Path, rows: list[Ids]) -> Callable[[], Vectors]:
    """The project's own pooler, as a run feeds it."""
    from networks import shapes

    from mlx_bulk.configs.schema import BatchConfig, ModelConfig
    from mlx_bulk.runner.checks.pooling_setup import fit_pooling_model
    from mlx_bulk.runner.core.outcomes import Pooled
    from mlx_bulk.runner.core.requests import PoolRequest, TokenInput
    from mlx_bulk.runner.models.pooling_loader import load_pooling_model
    from mlx_bulk.runner.pool_engine.pooler import Pooler
    from mlx_bulk.runner.pooling.sentence_folder import read_sentence_folder
    from mlx_bulk.runner.pooling.spec import PoolingSpec

    head, config = read_sentence_folder(folder).head, ModelConfig(path=str(folder))
    assert head is not None
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    model = load_pooling_model(config, shapes.find_checkpoint(config), PoolingSpec(head, width), 1 << 40)
    setup = fit_pooling_model(model, BatchConfig()).setup
    asked = [PoolRequest(row, (TokenInput(np.array(ids, np.int32)),)) for row, ids in enumerate(rows)]

    def work() -> Vectors:
        windows, found = iter([asked]), np.zeros((len(rows), width), np.float32)
        for outcome in Pooler(setup).run(lambda wait: next(windows, None)):
            assert isinstance(outcome, Pooled), outcome
            found[outcome.row] = outcome.values[0]
        return found

    return work


def sentence_transformers(folder: Path, rows: list[Ids]) -> Callable[[], Vectors]:
    """Its modules, called with ids: all that ``encode`` does but the tokenizer."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    model = SentenceTransformer(str(folder), device="cpu").eval()

    @torch.inference_mode()
    def run(batches: list[Batch]) -> list[Vectors]:
        found = [model({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}) for ids, mask in batches]
        return [vectors["sentence_embedding"].numpy() for vectors in found]

    return _best(run, rows)


def onnxruntime(folder: Path, rows: list[Ids]) -> Callable[[], Vectors]:
    """One session with a thread a core."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(folder / GRAPH), options, providers=["CPUExecutionProvider"])

    def run(batches: list[Batch]) -> list[Vectors]:
        found: list[Any] = [session.run(None, {"input_ids": ids, "attention_mask": mask})[0] for ids, mask in batches]
        return [_mean(states, mask) for states, (_, mask) in zip(found, batches, strict=True)]

    return _best(run, rows)


def openvino(folder: Path, rows: list[Ids]) -> Callable[[], Vectors]:
    """One stream with a thread a core, or a stream a core with a batch each, whichever is faster here."""
    import openvino as ov

    core = ov.Core()
    graph = core.read_model(folder / GRAPH)

    def run_with(streams: int) -> Run:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": streams}
        queue = ov.AsyncInferQueue(core.compile_model(graph, "CPU", settings), streams)
        found: dict[int, Vectors] = {}

        def keep(request: Any, of: tuple[int, NDArray[np.int64]]) -> None:
            found[of[0]] = _mean(request.get_output_tensor(0).data, of[1])

        queue.set_callback(keep)

        def run(batches: list[Batch]) -> list[Vectors]:
            for place, (ids, mask) in enumerate(batches):
                queue.start_async({"input_ids": ids, "attention_mask": mask}, (place, mask))
            queue.wait_all()
            return [found.pop(place) for place in range(len(batches))]

        return run

    return _best(run_with(1), rows, run_with(THREADS))


PEERS = {each.__name__: each for each in (ours, sentence_transformers, onnxruntime, openvino)}


def _best(run: Run, rows: list[Ids], *others: Run) -> Callable[[], Vectors]:
    """The work of the way and batch size that take least time for every fourth text."""
    some = rows[::4]
    ways = [(each, size) for each in (run, *others) for size in SIZES]

    def seconds(way: tuple[Run, int]) -> float:
        began = time.perf_counter()
        _embedded(way[0], some, way[1])
        return time.perf_counter() - began

    for way in ways:
        _embedded(way[0], rows[:8], 8)
    each, size = min(ways, key=lambda way: min(seconds(way), seconds(way)))
    return lambda: _embedded(each, rows, size)


def _embedded(run: Run, rows: list[Ids], size: int) -> Vectors:
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    places = [order[at : at + size] for at in range(0, len(order), size)]
    found = run([_batch([rows[row] for row in batch]) for batch in places])
    vectors = np.zeros((len(rows), found[0].shape[1]), np.float32)
    for batch, its in zip(places, found, strict=True):
        vectors[batch] = its
    return vectors


def _batch(rows: Sequence[Ids]) -> Batch:
    ids, mask = np.zeros((2, len(rows), max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return ids, mask


def _mean(states: Vectors, mask: NDArray[np.int64]) -> Vectors:
    """Mean of the tokens' states, of length 1."""
    vectors = (states * mask[..., None].astype(np.float32)).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
