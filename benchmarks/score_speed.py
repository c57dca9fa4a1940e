"""Scoring speed on this machine's CPU: tokens a second of ours, transformers (float32) and mlx-lm's evaluate, on one 135 M shape.

64 texts of 40 to 500 random tokens. transformers gets batches sorted by length, the best of several batch sizes, no mask (pads
stand on the right), and its head in chunks, or (transformers_logits) all logits of a batch at once, as lm-eval's backend asks for
them; mlx-lm's evaluate gets the same BLAS and sorted batches of 8.
Needs the extra `oracle`. The last line is JSON; `ratio` holds the median over rounds of a peer's seconds to ours.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from turns import race, serve

VOCABULARY = 49152
PEERS = ["ours", "transformers", "transformers_logits", "mlx_lm"]
BUDGETS = (512, 1024, 2048, 4096)  # padded tokens a batch that transformers is tried with
HEAD_TOKENS = 256  # whose logits transformers makes at once
Texts = list[np.ndarray]


def texts(count: int) -> Texts:
    """Random token ids of log-normal lengths, shortest first."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.05, 0.4, count), 40, 500).astype(int)
    return sorted((rng.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths), key=len)


def ours(folder: Path, rows: Texts) -> Callable[[], float]:
    """Through the project's own scorer."""
    import shapes
    from mlx_bulk.runner.records import Passage, ScoreRequest

    setup = shapes.setup(folder)
    requests = [ScoreRequest(i, (Passage(ids, np.arange(1, len(ids), dtype=np.int32)),)) for i, ids in enumerate(rows)]
    return lambda: sum(float(scores.logprobs.sum()) for outcome in shapes.scored(setup, requests) for scores in outcome.scores)


def transformers(folder: Path, rows: Texts, logits: bool = False) -> Callable[[], float]:
    """The best of ``BUDGETS``, found on every fourth text. ``logits``: all of a batch's at once, as lm-eval's backend asks for them."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def total(rows: Texts, budget: int) -> float:
        found = 0.0
        for batch in batches(rows, budget):
            width = len(batch[-1])
            ids = torch.tensor(np.stack([np.pad(row, (0, width - len(row))) for row in batch]), dtype=torch.int64)
            kept = torch.tensor(np.stack([np.arange(1, width) < len(row) for row in batch]))
            targets = ids[:, 1:][kept]
            if logits:
                logprobs = torch.nn.functional.log_softmax(model(input_ids=ids[:, :-1]).logits, dim=-1)
                found += float(logprobs[kept].gather(-1, targets[:, None]).sum())
                continue
            states = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[kept]
            for at in range(0, len(targets), HEAD_TOKENS):
                part = slice(at, at + HEAD_TOKENS)
                found -= float(torch.nn.functional.cross_entropy(model.lm_head(states[part]), targets[part], reduction="sum"))
        return found

    def seconds(budget: int) -> float:
        began = time.perf_counter()
        total(rows[::4], budget)
        return time.perf_counter() - began

    total(rows[:4], BUDGETS[0])
    best = min(BUDGETS, key=lambda budget: min(seconds(budget), seconds(budget)))
    return lambda: total(rows, best)


def mlx_lm(folder: Path, rows: Texts) -> Callable[[], float]:
    """What its ``loglikelihood_rolling`` does, with token ids for text."""
    from mlx_bulk.kernels.backend import load_mlx

    mx = load_mlx()
    from mlx_lm.evaluate import MLXLM

    peer = MLXLM(str(folder))

    def total() -> float:
        found = 0.0
        for at in range(0, len(rows), 8):
            scores, lengths, _ = peer._score_fn([row.tolist() for row in rows[at : at + 8]])
            found += (mx.where(mx.arange(scores.shape[-1]) < lengths[:, None] - 1, scores, 0.0)).sum().item()
        return found

    return total


def batches(rows: Texts, budget: int) -> Iterator[Texts]:
    """Consecutive rows, of at most ``budget`` padded tokens; the longest first."""
    batch: Texts = []
    for row in reversed(rows):
        if batch and (len(batch) + 1) * len(batch[0]) > budget:
            yield batch[::-1]
            batch = []
        batch.append(row)
    yield batch[::-1]


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.peer:
        rows = texts(int((args.folder / "texts").read_text()))
        peers = {"ours": ours, "transformers": transformers, "transformers_logits": partial(transformers, logits=True), "mlx_lm": mlx_lm}
        serve(peers[args.peer](args.folder, rows))
        return
    with tempfile.TemporaryDirectory() as name:
        import shapes

        folder = Path(name)
        shapes.save(folder, shapes.LLAMA_135M)
        (folder / "texts").write_text(str(args.texts))
        results = race(__file__, PEERS, folder, args.rounds)
    tokens = sum(map(len, texts(args.texts)))
    for result in results.values():
        result["tokens_per_second"] = round(tokens / statistics.median(result["seconds"]))
    ratio = {
        peer: round(statistics.median(b / a for a, b in zip(results["ours"]["seconds"], results[peer]["seconds"], strict=True)), 2)
        for peer in PEERS[1:]
    }
    print(json.dumps({"tokens": tokens, "ratio": ratio, **results}))


if __name__ == "__main__":
    main()
